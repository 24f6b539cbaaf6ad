package internet

import (
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Counts is what has reached the internet since it was started.
type Counts struct {
	// DNS counts questions by name and type, "web.test A", over UDP and TCP together.
	DNS map[string]int `json:"dns"`
	// Connections counts accepted TCP connections by the address that was dialled, "203.0.113.10:443".
	Connections map[string]int `json:"connections"`
	// Streams has the tick streams by id.
	Streams map[string]Stream `json:"streams"`
	// Packets counts what arrived from the engine, refused or not, by protocol and destination: "tcp 203.0.113.10:443",
	// "udp 8.8.8.8:53", "icmp 1.1.1.1". The kernel counts them.
	Packets map[string]int `json:"packets"`
}

// Stream is one tick stream as its server sees it.
type Stream struct {
	Bytes int `json:"bytes"`
	// Ended is the time at which the server noticed the end; zero while the stream goes on.
	Ended time.Time `json:"ended,omitzero"`
	// End says how: "reset" or "closed".
	End string `json:"end,omitempty"`
}

// Questions returns how often a name was asked for, whatever the type. "*.x" counts all names under x.
func (c Counts) Questions(name string) int {
	sum := 0
	for key, n := range c.DNS {
		asked, _, _ := strings.Cut(key, " ")
		if suffix, ok := strings.CutPrefix(name, "*"); ok && strings.HasSuffix(asked, suffix) || asked == name {
			sum += n
		}
	}
	return sum
}

// PacketsTo returns how many packets of any protocol and port arrived for an address.
func (c Counts) PacketsTo(addr netip.Addr) int {
	sum := 0
	for key, n := range c.Packets {
		_, to, _ := strings.Cut(key, " ")
		if host, _, err := net.SplitHostPort(to); err == nil {
			to = host
		}
		if to == addr.String() {
			sum += n
		}
	}
	return sum
}

// recorder collects Counts, but for Packets. Its methods may be called from any goroutine.
type recorder struct {
	mu          sync.Mutex // guards what follows
	dns         map[string]int
	connections map[string]int
	streams     map[string]Stream
}

func newRecorder() *recorder {
	return &recorder{dns: map[string]int{}, connections: map[string]int{}, streams: map[string]Stream{}}
}

func (r *recorder) counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Counts{DNS: maps.Clone(r.dns), Connections: maps.Clone(r.connections), Streams: maps.Clone(r.streams)}
}

func (r *recorder) question(name, qtype string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dns[name+" "+qtype]++
}

func (r *recorder) connection(to net.Addr) {
	tcp, ok := to.(*net.TCPAddr)
	if !ok {
		return
	}
	addr := tcp.AddrPort()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connections[netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()).String()]++
}

func (r *recorder) sent(stream string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.streams[stream]
	s.Bytes += n
	r.streams[stream] = s
}

func (r *recorder) ended(stream, how string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.streams[stream]
	if s.Ended.IsZero() {
		s.Ended, s.End = time.Now(), how
	}
	r.streams[stream] = s
}
