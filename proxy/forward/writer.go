package forward

import (
	"io"
	"net/http"
	"sync"
)

// writer passes an answer on to the client as it comes: whenever more of it has to be waited for, what is there is
// flushed. (To flush every write instead would double the system calls for small answers.)
type writer struct {
	http.ResponseWriter
	exchange *exchange

	mu     sync.Mutex // guards ResponseWriter and what follows
	unsent bool       // there is something to flush
	ended  bool       // ResponseWriter must not be used any more
}

// Header implements [http.ResponseWriter].
func (w *writer) Header() http.Header {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ResponseWriter.Header()
}

// WriteHeader implements [http.ResponseWriter].
func (w *writer) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.exchange
	if x.last || x.upload != nil && !x.upload.done.Load() {
		w.ResponseWriter.Header().Set("Connection", "close")
	}
	w.ResponseWriter.WriteHeader(status)
	w.unsent = true
}

// Write implements [io.Writer].
func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsent = true
	return w.ResponseWriter.Write(p)
}

// copyBuffers are of the size that io.Copy uses.
var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// ReadFrom implements [io.ReaderFrom], for io.Copy to take a buffer from the pool.
func (w *writer) ReadFrom(r io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[32 << 10]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{w}, r, buf[:])
}

// Flush implements [http.Flusher], also for goroutines other than the handler's.
func (w *writer) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unsent && !w.ended {
		w.unsent = false
		_ = http.NewResponseController(w.ResponseWriter).Flush() // the next Write fails too
	}
}

// end is called when the handler returns.
func (w *writer) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}
