"""What the children's tests run in a child: echoes, raises, exits, sleeps, fills memory or computes for ever."""

import os
import time


def handler():
    def handle(request):
        match request:
            case {"raise": text}:
                raise ValueError(text)
            case {"exit": code}:
                os._exit(code)
            case {"fill": count}:
                return {"size": len(bytearray(count))}
            case {"power": base}:
                return {"bits": (base ** (base**base)).bit_length()}  # one C call: no signal interrupts it
            case {"sleep": seconds}:
                return time.sleep(seconds) or {"slept": seconds}
            case _:
                print("chatter of a library")
                return {"echo": request, "pid": os.getpid()}

    return handle
