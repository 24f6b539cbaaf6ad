package harbor

import (
	"log/slog"
	"strings"
	"time"

	"sluice/dockernet/netns"
	"sluice/dockernet/nflog"
	"sluice/matcher"
	"sluice/proxy/audit"
	"sluice/proxy/refusal"
)

// logGroup is the group of NFLOG that gets the first packets of what the rules refuse.
const logGroup = 5303

// Reasons of records about packets where the policy gives none, as the controller has them.
const (
	reasonPlane  = "not-direct" // the policy allows the address, but not by this way: UDP, for instance
	reasonAlways = "never"      // no policy allows it
)

// tellRefusals writes a record of packets that the rules refuse, of the first ones where they are many, until stop has
// returned. Where that cannot be they are counted all the same.
func tellRefusals(ns *netns.Namespace, s *Sidecar, records *audit.Writer, log *slog.Logger) (stop func()) {
	logs, err := nflog.New()
	if err == nil {
		if _, err = logs.Open(ns.Do, logGroup, func(m nflog.Message) { records.Write(s.refused(&m)) }); err == nil {
			return logs.Close
		}
		logs.Close()
	}
	log.Warn("refusals of the kernel are counted, but not recorded", "error", err)
	return func() {}
}

// refused is the record of a packet.
func (s *Sidecar) refused(m *nflog.Message) *audit.Record {
	r := &audit.Record{Time: time.Now(), Phase: always.String(), Verdict: matcher.Refuse.String(), Decision: refusal.NewDecisionID()}
	protocol, to := m.Packet()
	r.Protocol, r.Port, r.Reason = protocol, to.Port(), reasonAlways
	if to.Addr().IsValid() {
		r.Target = to.Addr().String()
	}
	now := s.shown.Load()
	if now == nil {
		return r
	}
	r.Generation = now.generation
	if by := strings.TrimPrefix(m.Prefix, "sluice "); by != always.String() {
		r.Rule = by
		return r
	}
	r.Reason = reasonPlane
	if d := now.rules.Addr(to.Addr(), to.Port()); d.Verdict == matcher.Refuse {
		r.Reason = string(d.Reason)
	}
	return r
}
