package resolve
