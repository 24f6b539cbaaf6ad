package proxy

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/matcher"
	"sluice/policy"
)

// counter only grows.
type counter struct{ atomic.Uint64 }

// counters is a set of counters by label values. Looking one up takes no lock and does not allocate; the set grows
// by copying, so K must have few values: never what a client chose.
type counters[K comparable] struct {
	mu  sync.Mutex // held to add
	set atomic.Pointer[map[K]*counter]
}

func (c *counters[K]) at(k K) *counter {
	if set := c.set.Load(); set != nil {
		if n, ok := (*set)[k]; ok {
			return n
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	grown := make(map[K]*counter)
	if set := c.set.Load(); set != nil {
		if n, ok := (*set)[k]; ok {
			return n
		}
		maps.Copy(grown, *set)
	}
	n := new(counter)
	grown[k] = n
	c.set.Store(&grown)
	return n
}

func (c *counters[K]) each(f func(K, float64)) {
	if set := c.set.Load(); set != nil {
		for k, n := range *set {
			f(k, float64(n.Load()))
		}
	}
}

type connectionKey struct {
	phase    policy.Phase
	protocol protocol
	outcome  outcome
	reason   matcher.Reason
}

type queryKey struct {
	phase   policy.Phase
	outcome outcome
	reason  matcher.Reason
}

type bytesKey struct {
	phase policy.Phase
	in    bool
}

// tally is what a session counts. It goes with the session, and its series with it.
type tally struct {
	connections counters[connectionKey]
	queries     counters[queryKey]
	bytes       counters[bytesKey]
	cut         counter
}

var (
	connectionsDesc = prometheus.NewDesc("sluice_connections_total",
		"Connections and requests that were judged, by what became of them.",
		[]string{"container", "phase", "protocol", "verdict", "reason"}, nil)
	queriesDesc = prometheus.NewDesc("sluice_dns_queries_total",
		"DNS queries that were judged.", []string{"container", "phase", "verdict", "reason"}, nil)
	bytesDesc = prometheus.NewDesc("sluice_bytes_total",
		"Bytes of proxied flows; in is towards the container.", []string{"container", "phase", "direction"}, nil)
	flowsDesc = prometheus.NewDesc("sluice_flows_active",
		"Proxied flows that are open.", []string{"container"}, nil)
	cutDesc = prometheus.NewDesc("sluice_flows_cut_total",
		"Flows that were reset because the rules in force no longer allow them.", []string{"container"}, nil)
	generationDesc = prometheus.NewDesc("sluice_generation",
		"Generation of the rule set in force.", []string{"container"}, nil)
	uniqueDesc = prometheus.NewDesc("sluice_dns_unique_names",
		"Different names looked up under wildcard targets in the present phase.", []string{"container"}, nil)
	questionBytesDesc = prometheus.NewDesc("sluice_dns_question_bytes",
		"Bytes of questions for such names that name servers were asked in the present phase.", []string{"container"}, nil)
	auditLostDesc = prometheus.NewDesc("sluice_audit_lost_total",
		"Audit records that were lost because their sink was slow or failed.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connectionsDesc, queriesDesc, bytesDesc, flowsDesc, cutDesc, generationDesc,
		uniqueDesc, questionBytesDesc, auditLostDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. The series of a session go when it goes.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
	}
	used := make(map[string]bool)
	for _, session := range s.list() {
		name, t := session.label(), &session.tally
		if used[name] { // a container that goes and one that comes may have one name
			name += " (" + session.id + ")"
		}
		used[name] = true
		t.connections.each(func(k connectionKey, v float64) {
			send(connectionsDesc, prometheus.CounterValue, v,
				name, k.phase.String(), string(k.protocol), string(k.outcome), string(k.reason))
		})
		t.queries.each(func(k queryKey, v float64) {
			send(queriesDesc, prometheus.CounterValue, v, name, k.phase.String(), string(k.outcome), string(k.reason))
		})
		t.bytes.each(func(k bytesKey, v float64) {
			direction := "out"
			if k.in {
				direction = "in"
			}
			send(bytesDesc, prometheus.CounterValue, v, name, k.phase.String(), direction)
		})
		send(flowsDesc, prometheus.GaugeValue, float64(session.flows.Load()), name)
		send(cutDesc, prometheus.CounterValue, float64(t.cut.Load()), name)
		send(generationDesc, prometheus.GaugeValue, float64(session.rules().generation), name)
		names, bytes := session.rules().budget.Spent()
		send(uniqueDesc, prometheus.GaugeValue, float64(names), name)
		send(questionBytesDesc, prometheus.GaugeValue, float64(bytes), name)
	}
	if s.config.Audit != nil {
		send(auditLostDesc, prometheus.CounterValue, float64(s.config.Audit.Lost()))
	}
}
