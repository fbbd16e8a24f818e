"""Reading files through: every frame proven, and the good ones behind a break found again."""
