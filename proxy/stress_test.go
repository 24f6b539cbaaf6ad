package proxy

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	stressSeed = flag.Uint64("stress.seed", 0, "`seed` of TestStress (default: another one each time; it is logged)")
	stressTime = flag.Duration("stress.time", 2*time.Second, "how long TestStress opens connections")
)

// TestStress opens connections of every kind that do anything at any time, while policies change at random. Whatever
// comes out of the proxy, on either side, must be the next bytes of what went in on the other; and what is sent after the
// receipt of a policy that refuses it must not come out before another policy was asked for.
func TestStress(t *testing.T) {
	seed := *stressSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-stress.seed=%d", seed)
	s := &stress{T: t, flows: make(map[uint32]*stressFlow), open: make(map[net.Conn]struct{})}
	// Two names on each address: who may only use one must not reach the other.
	known := names{}
	for i, name := range stressHosts {
		known[name] = []string{fmt.Sprintf("127.0.0.%d", 2+i/2)}
	}
	var l net.Listener
	for i := range len(stressHosts) / 2 {
		at, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:%s", 2+i, cmp.Or(s.port, "0")))
		if err != nil {
			t.Fatal(err)
		}
		if l == nil {
			l = at
			_, s.port, _ = net.SplitHostPort(l.Addr().String())
		}
		serveOn(t, at, s.answer)
	}
	r, records := startAudited(t, `"public"`, Config{Hosts: known.hosts, HeaderTimeout: 300 * time.Millisecond})
	s.rig, s.proxy = r, r.address
	for i := range len(stressHosts) / 2 {
		r.redirect(fmt.Sprintf("127.0.0.%d:%s", 2+i, s.port))
		s.redirects = append(s.redirects, r.address)
	}
	r.address = s.proxy
	// Accepted sockets inherit it: a slow client soon makes the proxy keep what it cannot pass on.
	if err := unix.SetsockoptInt(r.acceptor().fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<10); err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)

	stop := make(chan struct{})
	var switching, clients sync.WaitGroup
	switching.Go(func() {
		for random := rand.New(rand.NewPCG(seed, 0)); ; {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(random.IntN(15)) * time.Millisecond):
				s.change(random)
			}
		}
	})
	end := time.Now().Add(*stressTime)
	for i := range 24 {
		clients.Go(func() {
			for random := rand.New(rand.NewPCG(seed, uint64(i)+1)); time.Now().Before(end) && !t.Failed(); {
				s.client(random)
			}
		})
	}
	clients.Wait()
	close(stop)
	switching.Wait()
	s.apply(`"no-network"`, nil)
	r.wantFlows(0)
	r.wantConnections(0)
	s.hangUp()
	for deadline := time.Now().Add(10 * time.Second); descriptors(t) > before+2*maxPipes*len(r.server.workers); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%d descriptors are open, %d before", descriptors(t), before)
			break
		}
	}
	r.wantNothingKept()
	s.audit(records())
}

var stressHosts = []string{"a.test", "b.test", "c.test", "d.test", "e.test", "f.test"}

// stress is what the sides of the test share.
type stress struct {
	*testing.T
	rig       *rig
	port      string
	proxy     string
	redirects []string // where what was meant for each address arrives

	clock atomic.Uint64 // stamps what is sent
	id    atomic.Uint32
	// Totals, for the log and the audit.
	opened, refused, frames, sent, arrived atomic.Uint64

	mu     sync.Mutex // guards what follows
	shut   [6][]span  // when each host was refused, in terms of clock
	closed [6]uint64  // since when it is, 0 if it is not
	flows  map[uint32]*stressFlow
	open   map[net.Conn]struct{} // of upstreams

	serving sync.WaitGroup // upstreams
}

// hangUp closes what upstreams have open: the kernel goes on sending what a proxy's socket held when it was closed.
func (s *stress) hangUp() {
	s.mu.Lock()
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.serving.Wait()
}

// answer serves one connection of an upstream.
func (s *stress) answer(c net.Conn) {
	s.serving.Add(1)
	defer s.serving.Done()
	s.mu.Lock()
	s.open[c] = struct{}{}
	s.mu.Unlock()
	s.serve(c)
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
}

type span struct{ from, to uint64 }

// stressFlow is one stream of frames each way, and the hosts that must be allowed for it.
type stressFlow struct {
	id    uint32
	hosts []int
}

// apply switches to a policy that allows some hosts.
func (s *stress) apply(policy string, allowed []int) {
	asked := s.clock.Add(1)
	s.mu.Lock()
	for _, h := range allowed {
		if s.closed[h] != 0 {
			s.shut[h] = append(s.shut[h], span{s.closed[h], asked})
			s.closed[h] = 0
		}
	}
	s.mu.Unlock()
	s.rig.apply(policy)
	now := s.clock.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range stressHosts {
		if s.closed[h] == 0 && !slices.Contains(allowed, h) {
			s.closed[h] = now
		}
	}
}

// change applies a random policy.
func (s *stress) change(random *rand.Rand) {
	some := random.Perm(len(stressHosts))[:1+random.IntN(len(stressHosts)-1)]
	var in, out []string
	var others []int
	for h, name := range stressHosts {
		if slices.Contains(some, h) {
			in = append(in, name)
		} else {
			out = append(out, name)
			others = append(others, h)
		}
	}
	switch random.IntN(8) {
	case 0:
		s.apply(`"public"`, append(some, others...))
	case 1:
		s.apply(`"no-network"`, nil)
	case 2:
		s.apply(deny(out...), some)
	default:
		s.apply(allow(in...), some)
	}
}

// wasRefused reports whether a host was refused all the time from when something was sent until it came.
func (s *stress) wasRefused(h int, sent, came uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from := s.closed[h]; from != 0 && sent > from {
		return true
	}
	for _, span := range slices.Backward(s.shut[h]) {
		if sent > span.from && came < span.to {
			return true
		}
		if span.to < sent {
			break
		}
	}
	return false
}

// begin makes a flow for hosts.
func (s *stress) begin(hosts ...int) *stressFlow {
	f := &stressFlow{s.id.Add(1), hosts}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flows[f.id] = f
	return f
}

func (s *stress) flow(id uint32) *stressFlow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flows[id]
}

// frameBytes is the size of a frame: its number in the stream, the flow's id and the time when it was sent.
const frameBytes = 16

// send writes frames until it has written some, or writing fails. Their ends are not those of the writes.
func (s *stress) send(w io.Writer, f *stressFlow, random *rand.Rand, first, n int) error {
	var b []byte
	for i := range n {
		b = binary.BigEndian.AppendUint32(b, uint32(first+i))
		b = binary.BigEndian.AppendUint32(b, f.id)
		b = binary.BigEndian.AppendUint64(b, s.clock.Add(1))
		if cut := random.IntN(len(b) + 1); i == n-1 || random.IntN(100) == 0 {
			if i == n-1 {
				cut = len(b)
			}
			wrote, err := w.Write(b[:cut])
			if _, ok := w.(client); ok {
				s.sent.Add(uint64(wrote))
			}
			if err != nil {
				return err
			}
			b = append(b[:0], b[cut:]...)
			if random.IntN(20) == 0 {
				time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
			}
		}
	}
	return nil
}

// receive reads frames until it has n, or the stream ends, and checks each. It returns how many came.
func (s *stress) receive(r io.Reader, f *stressFlow, random *rand.Rand, first, n int, where string) int {
	b := make([]byte, frameBytes)
	for i := range n {
		if _, err := io.ReadFull(r, b); err != nil {
			return i
		}
		came := s.clock.Load()
		number, id, sent := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])
		if number != uint32(first+i) || id != f.id {
			s.Errorf("%s, flow %d: frame %d of flow %d, want %d", where, f.id, number, id, first+i)
			return i
		}
		for _, h := range f.hosts {
			if s.wasRefused(h, sent, came) {
				s.Errorf("%s, flow %d: frame %d came through when %s was refused", where, f.id, number, stressHosts[h])
				return i
			}
		}
		s.frames.Add(1)
		if random.IntN(500) == 0 {
			time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
		}
	}
	return n
}

// serve is every upstream. A stream begins with what may stand before it, then with an id; a request has it in its path.
func (s *stress) serve(c net.Conn) {
	if tcp := c.(*net.TCPConn); tcp.RemoteAddr().(*net.TCPAddr).Port%3 == 0 {
		_ = tcp.SetReadBuffer(2 << 10) // so that the proxy has to keep things
	}
	counted := &countingReader{r: c, n: &s.arrived}
	b := bufio.NewReader(counted)
	for {
		first, err := b.Peek(1)
		if err != nil {
			return
		}
		switch first[0] {
		case 0x16: // a hello, or two; then the stream
			head, err := b.Peek(5)
			if err != nil {
				return
			}
			if _, err := b.Discard(5 + int(binary.BigEndian.Uint16(head[3:]))); err != nil {
				return
			}
		case 'x': // a word that may become something
			if _, err := b.ReadByte(); err != nil {
				return
			}
		case 0:
			_, _ = b.ReadByte()
			s.stream(c, b)
			return
		default:
			if !s.request(c, b) {
				return
			}
		}
	}
}

type countingReader struct {
	r io.Reader
	n *atomic.Uint64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(uint64(n))
	return n, err
}

// stream sends and receives frames on a raw connection; the flow's id comes first.
func (s *stress) stream(c net.Conn, b *bufio.Reader) {
	id := make([]byte, 4)
	if _, err := io.ReadFull(b, id); err != nil {
		return
	}
	f := s.flow(binary.BigEndian.Uint32(id))
	if f == nil {
		s.Errorf("a flow %x that nobody began", id)
		return
	}
	s.talk(c, b, f, "upstream")
}

// talk sends and receives at once, and ends in one of many ways.
func (s *stress) talk(c net.Conn, r io.Reader, f *stressFlow, where string) {
	var seed [8]byte
	binary.BigEndian.PutUint32(seed[:], f.id)
	copy(seed[4:], where)
	random := rand.New(rand.NewPCG(binary.BigEndian.Uint64(seed[:]), 7))
	turns, size := 1+random.IntN(4), 1<<random.IntN(16)
	var writing sync.WaitGroup
	writing.Go(func() {
		random := rand.New(rand.NewPCG(uint64(f.id), 9))
		for i := range turns {
			if s.send(c, f, random, i*size, size) != nil {
				return
			}
		}
		if half, ok := c.(interface{ CloseWrite() error }); ok && random.IntN(2) == 0 {
			_ = half.CloseWrite()
		} else { // or both wait for the end
			_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		}
	})
	most := 1 << 30
	if random.IntN(3) == 0 {
		most = random.IntN(2000)
	}
	s.receive(r, f, random, 0, most, where)
	if random.IntN(3) == 0 {
		if linger, ok := c.(interface{ SetLinger(int) error }); ok {
			_ = linger.SetLinger(0)
		}
		c.Close()
	} else if random.IntN(2) == 0 {
		c.Close()
	}
	_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond)) // the other side may wait for the same
	writing.Wait()
	c.Close()
}

// request answers one HTTP request, whose path is the flow's id; its body and that of the answer are frames.
func (s *stress) request(c net.Conn, b *bufio.Reader) bool {
	request, err := http.ReadRequest(b)
	if err != nil {
		return false
	}
	id, _ := strconv.ParseUint(strings.TrimPrefix(request.URL.Path, "/"), 10, 32)
	if id == 0 {
		return false // nonsense
	}
	f := s.flow(uint32(id))
	host, _, _ := net.SplitHostPort(request.Host)
	if f == nil || host != stressHosts[f.hosts[len(f.hosts)-1]] {
		s.Errorf("a request for %s%s that nobody sent", request.Host, request.URL)
		return false
	}
	random := rand.New(rand.NewPCG(id, 3))
	if request.Header.Get("Upgrade") != "" {
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		s.talk(c, b, f, "upstream, websocket")
		return false
	}
	s.receive(request.Body, f, random, 0, 1<<30, "upstream, request")
	n := random.IntN(3000)
	if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", n*frameBytes); err != nil {
		return false
	}
	return s.send(c, f, random, 0, n) == nil && random.IntN(10) > 0
}

// client is one connection to the proxy.
func (s *stress) client(random *rand.Rand) {
	h, address, redirected := random.IntN(len(stressHosts)), s.proxy, random.IntN(4) == 0
	if redirected {
		address = s.redirects[h/2]
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		if !redirected { // which may be refused before it has said anything
			s.Error(err)
		}
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	c := client{conn.(*net.TCPConn), bufio.NewReader(conn)}
	switch random.IntN(8) {
	case 0:
		s.nonsense(c, random)
		return
	case 1, 2:
		_ = c.SetReadBuffer(2 << 10)
	}
	switch {
	case redirected && random.IntN(2) == 0:
		s.talkTLS(c, random, h)
		return
	case redirected:
		for range 1 + random.IntN(3) {
			if !s.ask(c, random, h^random.IntN(2), inOrigin) {
				return
			}
		}
		return
	}
	for range random.IntN(4) { // requests, and then perhaps a tunnel
		if !s.ask(c, random, random.IntN(len(stressHosts)), toProxy) {
			return
		}
	}
	if random.IntN(4) > 0 {
		s.tunnel(c, random)
	}
}

// Where a request goes, if not into a tunnel.
const (
	toProxy  = -1
	inOrigin = -2
)

// talkTLS says hello for a name and then talks.
func (s *stress) talkTLS(c client, random *rand.Rand, h int) {
	s.opened.Add(1)
	f := s.begin(h)
	first := clientHello(s.T, stressHosts[h]) + "\x00" + string(binary.BigEndian.AppendUint32(nil, f.id))
	if pieces(c, first, random) == nil {
		s.talk(c.TCPConn, c.Reader, f, "client, redirected")
	}
}

// ask sends a request and reads the answer, and reports whether another one may follow. In a tunnel, within is whose.
func (s *stress) ask(c client, random *rand.Rand, h, within int) bool {
	hosts, url := []int{h}, ""
	switch {
	case within == toProxy:
		url = "http://" + stressHosts[h] + ":" + s.port
	case within >= 0:
		hosts = []int{within, h}
	}
	f := s.begin(hosts...)
	s.opened.Add(1)
	n, method, upgrade := random.IntN(2000), "POST", ""
	switch random.IntN(6) {
	case 0:
		n, method, upgrade = 0, "GET", "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
	case 1, 2, 3:
		n, method = 0, "GET"
	}
	head := fmt.Sprintf("%s %s/%d HTTP/1.1\r\nHost: %s:%s\r\n%sContent-Length: %d\r\n\r\n", method, url, f.id, stressHosts[h], s.port, upgrade, n*frameBytes)
	if upgrade != "" {
		head = strings.Replace(head, "Content-Length: 0\r\n", "", 1)
	}
	if pieces(c, head, random) != nil {
		return false
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() { _ = s.send(c.TCPConn, f, rand.New(rand.NewPCG(uint64(f.id), 5)), 0, n) })
	response, err := http.ReadResponse(c.Reader, &http.Request{Method: method})
	if err != nil {
		c.Close() // for the one who sends
		return false
	}
	switch response.StatusCode {
	case http.StatusOK:
		s.receive(response.Body, f, random, 0, 1<<30, "client, answer")
	case http.StatusSwitchingProtocols:
		s.talk(c.TCPConn, c.Reader, f, "client, websocket")
		return false
	default:
		s.refused.Add(1)
		_, _ = io.Copy(io.Discard, response.Body)
	}
	if response.Close {
		c.Close()
	}
	return !response.Close
}

// pieces writes text, whole or not.
func pieces(w io.Writer, text string, random *rand.Rand) error {
	for text != "" {
		n := len(text)
		if random.IntN(3) == 0 {
			n = 1 + random.IntN(n)
		}
		if _, err := io.WriteString(w, text[:n]); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// tunnel asks for a tunnel and talks in it.
func (s *stress) tunnel(c client, random *rand.Rand) {
	h := random.IntN(len(stressHosts))
	s.opened.Add(1)
	head := fmt.Sprintf("CONNECT %s:%s HTTP/1.1\r\n\r\n", stressHosts[h], s.port)
	hosts, first, web := []int{h}, "", false
	switch random.IntN(6) {
	case 0: // a word that may become anything
		first = strings.Repeat("x", 1+random.IntN(3))
	case 1, 2: // a hello, for itself or another name; perhaps again, or for another name then
		shown := h ^ random.IntN(2)
		hosts = append(hosts, shown)
		first = clientHello(s.T, stressHosts[shown])
		switch random.IntN(4) {
		case 0:
			first += first
		case 1:
			hosts = append(hosts, h^1)
			if h^1 != shown { // never passes
				hosts = nil
			}
			first += clientHello(s.T, stressHosts[h^1])
		}
	case 3:
		web = true
	}
	early := random.IntN(2) == 0
	f := s.begin(hosts...)
	if !web {
		first += "\x00" + string(binary.BigEndian.AppendUint32(nil, f.id))
	}
	if early {
		head += first
	}
	if pieces(c, head, random) != nil {
		return
	}
	response, err := http.ReadResponse(c.Reader, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return
	}
	if response.StatusCode != http.StatusOK {
		s.refused.Add(1)
		return
	}
	if web {
		for range 1 + random.IntN(3) {
			if !s.ask(c, random, h^random.IntN(2), h) {
				return
			}
		}
		return
	}
	if !early && pieces(c, first, random) != nil {
		return
	}
	if hosts == nil { // nothing may come back
		if n, _ := io.Copy(io.Discard, c); n > 0 {
			s.Errorf("flow %d: %d bytes of an answer to a second hello for another name", f.id, n)
		}
		return
	}
	s.talk(c.TCPConn, c.Reader, f, "client")
}

// nonsense is a client that does not know what it wants.
func (s *stress) nonsense(c client, random *rand.Rand) {
	text := []string{
		"", "CONN", "CONNECT a.test", "CONNECT a.test:0 HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x00\x05hello",
		"CONNECT a.test:" + s.port + " HTTP/1.1\r\n\r\n\x16\x03\x01\x40\x00", "CONNECT a.test:" + s.port + " HTTP/1.1\r\n\r\nGET / HT",
		"POST http://a.test:" + s.port + "/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nabc", "\r\n\r\n\r\n",
		"CONNECT " + strings.Repeat("a", 70<<10),
	}
	_, _ = io.WriteString(c.TCPConn, text[random.IntN(len(text))])
	switch random.IntN(3) {
	case 0:
		_ = c.SetLinger(0)
	case 1:
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	}
}

// audit compares the records with the counters, and their bytes with those that went in and came out.
func (s *stress) audit(records []record) {
	verdicts := make(map[string]int)
	var bytes uint64
	for _, one := range records {
		verdicts[one.Verdict]++
		bytes += one.BytesOut
		if one.Decision == "" && (one.Verdict == string(refused) || one.Verdict == string(failed) && one.Reason != string(reasonClientGone)) {
			s.Errorf("%v has no decision", one)
		}
	}
	s.Logf("%d opened, %d refused, %d frames, records %v, %d bytes arrived", s.opened.Load(), s.refused.Load(), s.frames.Load(), verdicts, s.arrived.Load())
	if bytes < s.arrived.Load() {
		s.Errorf("%d bytes in the records, but %d arrived", bytes, s.arrived.Load())
	}
	var counted uint64
	s.rig.session.tally.connections.each(func(_ connectionKey, n float64) { counted += uint64(n) })
	if int(counted) != len(records) {
		s.Errorf("%d connections counted, %d recorded", counted, len(records))
	}
}
