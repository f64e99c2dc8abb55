"""Forward passes of the student and of the teacher, turned into signals. Knows no method and no engine."""
