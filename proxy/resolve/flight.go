package resolve

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice/proxy/dnswire"
	"sluice/proxy/upstream"
)

// flight is a look-up under way: one question for each family.
type flight struct {
	name    string
	halves  [2]half // AAAA, A
	missing int     // halves that have not come
	delay   *time.Timer
	asked   []context.Context // of those who look the name up
	done    chan struct{}     // closed when answer and err are there; they do not change any more
	answer  Answer
	err     error
}

// half is what one family's question brings.
type half struct {
	query  upstream.Query
	flight *flight
	came   bool
	addrs  []netip.Addr
	chain  []string
	ttl    time.Duration
	err    error
}

var families = [2]uint16{dnswire.TypeAAAA, dnswire.TypeA}

func newFlight(name string) (*flight, error) {
	f := &flight{name: name, missing: len(families), done: make(chan struct{})}
	for i, family := range families {
		h := &f.halves[i]
		h.flight = f
		msg, ok := question(name, family)
		if !ok {
			return nil, ErrBadName
		}
		h.query.Msg, h.query.Owner = msg, h
		h.query.Question, _ = dnswire.ReadQuestion(msg)
	}
	return f, nil
}

// question makes the message that asks for name, and reports false if that is no host name.
func question(name string, qtype uint16) ([]byte, bool) {
	if _, err := netip.ParseAddr(name); err == nil || strings.ContainsFunc(name, notInHost) {
		return nil, false
	}
	msg := []byte{0, 0, dnswire.FlagRD, 0, 0, 1, 0, 0, 0, 0, 0, 1}
	for label := range strings.SplitSeq(name, ".") {
		if len(label) == 0 || len(label) > dnswire.MaxLabel {
			return nil, false
		}
		msg = append(append(msg, byte(len(label))), label...)
	}
	msg = append(msg, 0)
	if len(msg) > dnswire.HeaderLen+dnswire.MaxName {
		return nil, false
	}
	msg = binary.BigEndian.AppendUint16(msg, qtype)
	msg = append(msg, 0, dnswire.ClassIN)
	// EDNS with 1232 bytes, so that most answers need no TCP (RFC 9715).
	return append(msg, 0, 0, dnswire.TypeOPT, 1232>>8, 1232&0xff, 0, 0, 0, 0, 0, 0), true
}

func notInHost(c rune) bool {
	return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
}

// wanted reports whether somebody still looks up what f does. Nobody can join a flight of which it has said no.
func (r *Resolver) wanted(f *flight) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ctx := range f.asked {
		if ctx.Err() == nil {
			return true
		}
	}
	if r.flights[f.name] == f {
		delete(r.flights, f.name)
	}
	return false
}

// start asks both questions.
func (r *Resolver) start(f *flight) {
	r.gate.Lock()
	defer r.gate.Unlock()
	if !r.wanted(f) {
		for i := range f.halves {
			h := &f.halves[i]
			r.came(h, func() { h.err = ErrClosed })
		}
		return
	}
	sender := r.client.NewSender()
	for i := range f.halves {
		h := &f.halves[i]
		if err := sender.Add(&h.query); err != nil {
			r.came(h, func() { h.err = failure(err) })
		}
	}
	sender.Flush()
}

// sink takes the answers to both.
type sink struct{ r *Resolver }

func (s sink) Answer(q *upstream.Query, msg []byte) {
	h := q.Owner.(*half)
	s.r.came(h, func() { h.read(msg) })
}

func (s sink) Fail(q *upstream.Query, err error) {
	h := q.Owner.(*half)
	s.r.came(h, func() { h.err = failure(err) })
}

func (s sink) Flush() {}

// failures are the client's errors and what they are called here; others are [ErrServer].
var failures = []struct{ from, to error }{
	{upstream.ErrTimeout, ErrTimeout},
	{upstream.ErrBusy, ErrBusy},
	{upstream.ErrNoServer, ErrNoUpstream},
	{upstream.ErrClosed, ErrClosed},
}

func failure(err error) error {
	for _, f := range failures {
		if errors.Is(err, f.from) {
			return f.to
		}
	}
	return fmt.Errorf("%w: %w", ErrServer, err)
}

// came takes what became of one half, which fill writes to it.
func (r *Resolver) came(h *half, fill func()) {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	fill()
	h.came = true
	f := h.flight
	f.missing--
	switch {
	case f.missing == 0:
		if f.delay != nil {
			f.delay.Stop()
		}
		answer, err := f.result(now)
		f.finishLocked(answer, err)
		if r.flights[f.name] == f { // not flushed meanwhile
			delete(r.flights, f.name)
			if now.Before(answer.Expires) {
				r.rememberLocked(f.name, entry{answer, err}, now)
			}
		}
	case len(h.addrs) > 0:
		f.delay = time.AfterFunc(r.delay, func() { r.partial(f) })
	}
}

// partial ends the wait for the second half. When it comes later, the whole answer is remembered.
func (r *Resolver) partial(f *flight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	answer, err := f.result(r.now())
	f.finishLocked(answer, err)
}

// finishLocked lets those who wait have the answer, unless they have one.
func (f *flight) finishLocked(answer Answer, err error) {
	select {
	case <-f.done:
	default:
		f.answer, f.err = answer, err
		close(f.done)
	}
}

// result puts the halves together. The answer's Expires also holds for an error.
func (f *flight) result(now time.Time) (Answer, error) {
	var a Answer
	var failed error
	positive, negative := ttlMax, negativeMax
	for i := range f.halves {
		h := &f.halves[i]
		switch {
		case !h.came:
			positive = 0
			continue
		case h.err != nil:
			positive = min(positive, partialTTL)
			if failed == nil || errors.Is(failed, ErrTimeout) {
				failed = h.err // a timeout says the least
			}
			continue
		case len(h.addrs) > 0:
			positive = min(positive, h.ttl)
		default:
			negative = min(negative, h.ttl)
		}
		a.Addrs = append(a.Addrs, h.addrs...)
		for _, name := range h.chain {
			if !slices.Contains(a.Chain, name) {
				a.Chain = append(a.Chain, name)
			}
		}
	}
	switch {
	case len(a.Addrs) > 0:
		a.Expires = now.Add(positive)
		return a, nil
	case errors.Is(failed, ErrBusy), errors.Is(failed, ErrClosed):
		return Answer{}, failed
	case failed != nil:
		return Answer{Expires: now.Add(failureTTL)}, failed
	default:
		return Answer{Expires: now.Add(negative)}, ErrNotFound
	}
}

// read reads an answer.
func (h *half) read(msg []byte) {
	switch msg[3] & dnswire.RcodeMask {
	case dnswire.RcodeNoError, dnswire.RcodeNXDomain:
		h.err = h.readRecords(msg)
	case dnswire.RcodeServFail:
		h.err = fmt.Errorf("%w (SERVFAIL)", ErrServer)
	case dnswire.RcodeRefused:
		h.err = fmt.Errorf("%w (REFUSED)", ErrServer)
	default:
		h.err = fmt.Errorf("%w (code %d)", ErrServer, msg[3]&dnswire.RcodeMask)
	}
}

// errAnswer is for answers that cannot be read.
var errAnswer = fmt.Errorf("%w (malformed answer)", ErrServer)

// alias is a CNAME record.
type alias struct {
	owner, target string
	ttl           uint32
}

// readRecords follows the aliases from the question to the addresses. Records that do not belong to them are not
// taken.
func (h *half) readRecords(msg []byte) error {
	var aliases []alias
	var addresses []dnswire.Record
	off := h.query.Question.End
	for range dnswire.Count(msg, 1) {
		r, ok := dnswire.ReadRecord(msg, off)
		if !ok {
			return errAnswer
		}
		off = r.End
		switch {
		case r.Class != dnswire.ClassIN:
		case r.Type == h.query.Question.Type:
			addresses = append(addresses, r)
		case r.Type == dnswire.TypeCNAME:
			owner, ok1 := dnswire.ReadName(nil, msg, r.Name)
			target, ok2 := dnswire.ReadName(nil, msg, r.Data)
			if !ok1 || !ok2 {
				return errAnswer
			}
			aliases = append(aliases, alias{string(owner), string(target), dnswire.Seconds(msg, r)})
		}
	}
	name, ttl := h.flight.name, uint32(ttlMax/time.Second)
	for range aliases { // each is followed once at most
		i := slices.IndexFunc(aliases, func(a alias) bool { return a.owner == name })
		if i < 0 {
			break
		}
		name, ttl = aliases[i].target, min(ttl, aliases[i].ttl)
		h.chain = append(h.chain, name)
		aliases[i].owner = "" // no loops
	}
	var owner []byte
	for _, r := range addresses {
		owner, ok := dnswire.ReadName(owner[:0], msg, r.Name)
		if !ok || string(owner) != name {
			continue
		}
		addr, ok := netip.AddrFromSlice(msg[r.Data:r.End])
		if !ok || addr.Is4() != (r.Type == dnswire.TypeA) {
			return errAnswer
		}
		h.addrs = append(h.addrs, addr.Unmap())
		ttl = min(ttl, dnswire.Seconds(msg, r))
	}
	h.ttl = time.Duration(ttl) * time.Second
	if len(h.addrs) == 0 {
		h.ttl = min(h.ttl, negative(msg, off))
	}
	return nil
}

// negative returns how long "no such record" holds: what the SOA record in the authority section, at off, says.
func negative(msg []byte, off int) time.Duration {
	for range dnswire.Count(msg, 2) {
		r, ok := dnswire.ReadRecord(msg, off)
		if !ok {
			break
		}
		off = r.End
		if r.Type == dnswire.TypeSOA && r.End-r.Data >= 20 {
			minimum := binary.BigEndian.Uint32(msg[r.End-4:]) // RFC 2308 section 3
			return min(time.Duration(min(minimum, dnswire.Seconds(msg, r)))*time.Second, ttlMax)
		}
	}
	return negativeTTL
}
