package dns

import (
	"encoding/binary"
	"net/netip"
	"time"

	"sluice/matcher"
	"sluice/proxy/dnswire"
)

// localTTL is short, for siblings come and go.
const localTTL = 5 * time.Second

// appendLocal appends the answer to q for a local name with these addresses, less those that judge refuses.
func (q *query) appendLocal(dst []byte, judge func(netip.Addr) matcher.Decision, addrs []netip.Addr) ([]byte, matcher.Decision) {
	d := q.decision
	start := len(dst)
	dst = q.appendReply(dst, dnswire.RcodeNoError, noExtended, "")
	opt := dst[start+dnswire.HeaderLen+len(q.asked):]
	var optRoom [dnswire.OPTLen]byte
	opt = optRoom[:copy(optRoom[:], opt)]
	dst = dst[:len(dst)-len(opt)]

	answers, refused := 0, matcher.Decision{}
	for _, addr := range addrs {
		addr = addr.Unmap()
		if addr.Is4() != (q.Question.Type == dnswire.TypeA) || !addr.Is4() && q.Question.Type != dnswire.TypeAAAA {
			continue
		}
		// Siblings lie in networks that the proxy itself must not dial, and are reached without it.
		if dj := judge(addr); dj.Verdict != matcher.Allow && dj.Reason != matcher.OwnAddress {
			refused = dj
			q.dropped++
			continue
		}
		answers++
		dst = append(dst, 0xc0, dnswire.HeaderLen, 0, byte(q.Question.Type), 0, dnswire.ClassIN)
		dst = binary.BigEndian.AppendUint32(dst, uint32(localTTL/time.Second))
		dst = append(dst, 0, byte(addr.BitLen()/8))
		dst = append(dst, addr.AsSlice()...)
	}
	dst = append(dst, opt...)
	dnswire.SetCount(dst[start:], 1, answers)
	if answers == 0 && q.dropped > 0 {
		return dst, refused
	}
	d.Reason = ReasonLocal
	return dst, d
}
