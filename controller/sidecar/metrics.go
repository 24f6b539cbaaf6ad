package sidecar

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// reason says why a sidecar was ended.
type reason string

const (
	reasonDied    reason = "died"    // its process ended by itself
	reasonHung    reason = "hung"    // its health check failed twice in a row, or it did not answer a new controller
	reasonStart   reason = "start"   // it did not come into service
	reasonSwitch  reason = "switch"  // it did not put rules in force in time
	reasonHand    reason = "hand"    // it did not take or give back sockets
	reasonDrained reason = "drained" // it was upgraded, and its flows are gone or were given time enough
)

// restarts are the reasons that count as a restart.
var restarts = []reason{reasonDied, reasonHung, reasonStart, reasonSwitch, reasonHand}

type metrics struct {
	restarts     *prometheus.CounterVec
	drained      prometheus.Counter
	gaps         prometheus.Counter
	startSeconds prometheus.Histogram
	total        atomic.Uint64
}

func newMetrics() *metrics {
	m := &metrics{
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_sidecar_restarts_total",
			Help: "Sidecars that were replaced, by what was wrong with them."}, []string{"reason"}),
		drained: prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_sidecar_drained_total",
			Help: "Former sidecars that were stopped after an upgrade."}),
		gaps: prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_sidecar_audit_gaps_total",
			Help: "Times that audit records of a sidecar may have been lost: it ended, or they came too fast."}),
		startSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_sidecar_start_seconds",
			Help: "Time to start a sidecar and give it all sessions.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 10)}),
	}
	for _, r := range restarts {
		m.restarts.WithLabelValues(string(r))
	}
	return m
}

func (m *metrics) ended(r reason) {
	if r == reasonDrained {
		m.drained.Inc()
		return
	}
	m.restarts.WithLabelValues(string(r)).Inc()
	m.total.Add(1)
}

func (m *metrics) restarted() uint64 { return m.total.Load() }

var sidecarsDesc = prometheus.NewDesc("sluice_sidecars", "Sidecars that run, by state.", []string{"state"}, nil)

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.restarts, m.drained, m.gaps, m.startSeconds}
}

// Describe implements [prometheus.Collector].
func (s *Sidecar) Describe(ch chan<- *prometheus.Desc) {
	ch <- sidecarsDesc
	for _, c := range s.metrics.collectors() {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (s *Sidecar) Collect(ch chan<- prometheus.Metric) {
	count := map[string]int{"starting": 0, "serving": 0, "draining": 0}
	for _, i := range s.Status().Sidecars {
		count[i.State]++
	}
	for state, n := range count {
		ch <- prometheus.MustNewConstMetric(sidecarsDesc, prometheus.GaugeValue, float64(n), state)
	}
	for _, c := range s.metrics.collectors() {
		c.Collect(ch)
	}
}
