package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

var (
	errChanging = errors.New("the file keeps changing while it is read")
	errEmpty    = errors.New("the file is empty")
	errNUL      = errors.New("the file holds NUL bytes, as one that is not filled yet")
	// errNameless: the path leads to a file that has no name. That is so for a moment while it is removed or another one
	// renamed over it, and for good where a single file is mounted, which goes on showing the old one.
	errNameless = errors.New("the file was removed or replaced where it is mounted from: mount its directory, or write it in place")
	errFresh    = errors.New("the file has changed a moment ago and may be cut off")
)

// passing reports errors that may be over in a moment: the file is being changed, or this process or machine has
// nothing left to read it with.
func passing(err error) bool {
	return err == errChanging || err == errNameless || errors.Is(err, syscall.ESTALE) ||
		errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// content is what stood in the file at one moment.
type content struct {
	sig signature
	// seen is a moment at which sig had been seen: whatever was written until then may have it.
	seen time.Time
	data []byte
}

// read returns what is in the file once two reads agree and the status around them does. What may be so for an
// instant only, in the middle of a write, a rename, or a removal of where a link led before, is looked at again.
func (f *File[T]) read() (content, error) {
	var c content
	var err error
	for range 8 {
		c, err = f.readOnce()
		if err != errChanging && err != errNameless && !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	return c, err
}

func (f *File[T]) readOnce() (content, error) {
	// O_NONBLOCK: should a pipe have taken the file's place, opening it must not wait for its writer.
	file, err := os.OpenFile(f.o.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return content{}, err
	}
	defer file.Close()
	before, err := f.statFile(file)
	if err != nil {
		return content{}, err
	}
	c := content{sig: before, seen: time.Now()}
	if before.size > f.o.MaxBytes {
		return content{}, fmt.Errorf("%s has %d bytes, more than %d", f.o.Path, before.size, f.o.MaxBytes)
	}
	if c.data, err = io.ReadAll(io.LimitReader(file, f.o.MaxBytes+1)); err != nil {
		return content{}, err
	}
	same, err := reads(file, c.data)
	if err != nil {
		return content{}, err
	}
	after, err := f.statFile(file)
	if err != nil {
		return content{}, err
	}
	now, err := f.stat(false)
	if err != nil {
		return content{}, err
	}
	if !same || after != before || now != before || int64(len(c.data)) != before.size {
		return content{}, errChanging
	}
	return c, nil
}

// reads reports whether the file's content is data still, and nothing else.
func reads(file *os.File, data []byte) (bool, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	buffer := make([]byte, min(len(data)+1, 64<<10))
	for {
		n, err := file.Read(buffer)
		if n > len(data) || !bytes.Equal(buffer[:n], data[:n]) {
			return false, nil
		}
		data = data[n:]
		if err == io.EOF {
			return len(data) == 0, nil
		}
		if err != nil {
			return false, err
		}
	}
}
