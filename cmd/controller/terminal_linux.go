package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// columns returns how many characters fit in a line of the terminal that f is, 0 if it is none.
func columns(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	switch {
	case err != nil:
		return 0
	case size.Col == 0: // a serial line does not know
		return 80
	}
	return int(size.Col)
}
