package main

import "syscall"

// detached makes a program go on when the terminal and this process are gone.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
