package audit

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// sink is where lines go. It is not safe for concurrent use, except for interrupt.
type sink struct {
	io.Writer
	file *os.File // nil if the Writer is somebody else's
}

// Open returns a Writer on the file at path, which is made with mode 0640 or appended to, on standard output for "-",
// or one that forgets its records for "".
func Open(path string) (*Writer, error) {
	switch path {
	case "":
		return start("", nil), nil
	case "-":
		// Of another descriptor: a write to a closed pipe on 1 would end the process by SIGPIPE.
		fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, fmt.Errorf("open audit log: duplicate standard output: %w", err)
		}
		f := os.NewFile(uintptr(fd), "standard output")
		return start(path, &sink{Writer: f, file: f}), nil
	}
	s, err := openFile(path)
	if err != nil {
		return nil, err
	}
	return start(path, s), nil
}

// Reopen opens the path again, for a log that was renamed, and goes on there from the next write on. If that fails the
// Writer goes on as before. It does nothing on standard output.
func (w *Writer) Reopen() error {
	if w.path == "" || w.path == "-" {
		return nil
	}
	s, err := openFile(w.path)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errors.Join(s.close(), fmt.Errorf("reopen audit log %s: %w", w.path, os.ErrClosed))
	}
	if w.reopened != nil {
		w.reopened.close()
	}
	w.reopened = s
	w.kick()
	return nil
}

// openFile opens for reading too: to look at the end of the file, and because opening a named pipe for writing
// alone waits for a reader.
func openFile(path string) (*sink, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	return &sink{Writer: f, file: f}, nil
}

// size returns the length of a regular file, and 0 for anything else.
func (s *sink) size() int64 {
	if s.file == nil {
		return 0
	}
	if info, err := s.file.Stat(); err == nil && info.Mode().IsRegular() {
		return info.Size()
	}
	return 0
}

// cut takes the last n bytes off a regular file.
func (s *sink) cut(n int64) {
	if size := s.size(); size >= n {
		_ = s.file.Truncate(size - n) // a torn line is the worst that remains
	}
}

// torn reports whether a regular file ends within a line.
func (s *sink) torn() bool {
	size := s.size()
	if size == 0 {
		return false
	}
	var last [1]byte
	_, err := s.file.ReadAt(last[:], size-1)
	return err == nil && last[0] != '\n'
}

func (s *sink) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// interrupt ends a write to a file that can be polled.
func (s *sink) interrupt() { _ = s.close() }
