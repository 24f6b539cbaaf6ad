package internet

import (
	_ "embed"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

//go:embed test.zone
var zoneText string

// maxChain bounds how many CNAMEs one answer follows.
const maxChain = 8

// zone is an authoritative server for .test. It is safe for concurrent use.
type zone struct {
	record func(name, qtype string)

	mu    sync.Mutex // guards what follows
	names map[string][]dns.RR
	// turns counts the answers given for names whose answer changes.
	turns map[string]int
}

// changing names answer with one address after the other and then stay at the last one.
var changing = map[string][]string{
	// The second look-up of a name must not be the one that is dialled.
	"rebind.test.": {"203.0.113.30", "127.0.0.1"},
	"moving.test.": {"203.0.113.31", "203.0.113.32", "203.0.113.33"},
}

// Rotating is how many addresses the name rotate.test has. It answers with one of them, each time with the next one.
const Rotating = 200

func newZone(record func(name, qtype string)) *zone {
	z := &zone{record: record, names: map[string][]dns.RR{}, turns: map[string]int{}}
	parser := dns.NewZoneParser(strings.NewReader(zoneText), "", "test.zone")
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		z.names[rr.Header().Name] = append(z.names[rr.Header().Name], rr)
	}
	if err := parser.Err(); err != nil {
		panic(err) // the file is part of this package, and a test reads it
	}
	for i := range 100 { // more addresses than fit into a small UDP answer
		z.names["many.test."] = append(z.names["many.test."], mustRR("many.test. 60 A 203.0.113.%d", 100+i))
	}
	return z
}

func mustRR(format string, args ...any) dns.RR {
	rr, err := dns.NewRR(fmt.Sprintf(format, args...))
	if err != nil {
		panic(err)
	}
	return rr
}

// Set replaces what a name answers with: records in zone-file form without the name, "A 203.0.113.5" or
// "5 AAAA 2001:db8::5" with a lifetime in front. Without records the name is gone.
func (z *zone) set(name string, records []string) error {
	name = dns.CanonicalName(name)
	var rrs []dns.RR
	for _, text := range records {
		rr, err := dns.NewRR(name + " " + text)
		if err != nil {
			return fmt.Errorf("record %q of %s: %w", text, name, err)
		}
		rrs = append(rrs, rr)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if len(rrs) == 0 {
		delete(z.names, name)
	} else {
		z.names[name] = rrs
	}
	return nil
}

// ServeDNS answers one query.
func (z *zone) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	reply := new(dns.Msg)
	if len(query.Question) != 1 {
		w.WriteMsg(reply.SetRcode(query, dns.RcodeFormatError))
		return
	}
	q := query.Question[0]
	name := dns.CanonicalName(q.Name)
	z.record(strings.TrimSuffix(name, "."), dns.TypeToString[q.Qtype])
	reply.SetReply(query)
	if !dns.IsSubDomain("test.", name) {
		reply.Rcode = dns.RcodeRefused
	} else {
		z.answer(reply, name, q.Qtype)
	}
	size := dns.MinMsgSize
	if opt := query.IsEdns0(); opt != nil {
		size = max(size, int(opt.UDPSize()))
		reply.SetEdns0(dns.DefaultMsgSize, false)
	}
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
		reply.Truncate(size)
	}
	w.WriteMsg(reply)
}

func (z *zone) answer(reply *dns.Msg, name string, qtype uint16) {
	z.mu.Lock()
	defer z.mu.Unlock()
	reply.Authoritative = true
	for range maxChain {
		rrs, exists := z.lookupLocked(name)
		var next string
		found := false
		for _, rr := range rrs {
			switch cname, alias := rr.(*dns.CNAME); {
			case rr.Header().Rrtype == qtype || qtype == dns.TypeANY:
				reply.Answer = append(reply.Answer, rr)
				found = true
			case alias:
				reply.Answer = append(reply.Answer, rr)
				next = cname.Target
			}
		}
		if next != "" && !found {
			name = next
			continue
		}
		if !exists {
			reply.Rcode = dns.RcodeNameError
		}
		if !found {
			reply.Ns = append(reply.Ns, z.names["test."][0])
		}
		return
	}
	reply.Rcode = dns.RcodeServerFailure
}

// lookupLocked returns the records of a name, by its wildcard if it has none of its own, with the name as owner.
func (z *zone) lookupLocked(name string) ([]dns.RR, bool) {
	if name == "rotate.test." {
		turn := z.turns[name]
		z.turns[name]++
		return []dns.RR{mustRR("%s 0 A 198.51.100.%d", name, 54+turn%Rotating)}, true
	}
	if addrs := changing[name]; addrs != nil {
		turn := min(z.turns[name], len(addrs)-1)
		z.turns[name]++
		return []dns.RR{mustRR("%s 0 A %s", name, addrs[turn])}, true
	}
	if rrs, ok := z.names[name]; ok {
		return rrs, true
	}
	for parent := name; ; {
		i, end := dns.NextLabel(parent, 0)
		if end {
			return nil, z.isParentLocked(name)
		}
		parent = parent[i:]
		if rrs, ok := z.names["*."+parent]; ok {
			own := make([]dns.RR, len(rrs))
			for i, rr := range rrs {
				own[i] = dns.Copy(rr)
				own[i].Header().Name = name
			}
			return own, true
		}
	}
}

// isParentLocked reports whether names lie under this one, which then exists without records (RFC 8020).
func (z *zone) isParentLocked(name string) bool {
	for known := range z.names {
		if strings.HasSuffix(known, "."+name) {
			return true
		}
	}
	return false
}
