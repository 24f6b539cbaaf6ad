package controller

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"sluice/controller/api"
	"sluice/matcher"
	"sluice/policy"
)

// switchBuckets are in seconds: a switch takes milliseconds, an attach some tens of them.
var switchBuckets = []float64{.001, .002, .003, .005, .0075, .01, .015, .02, .03, .05, .1, .25, 1, 5}

// metrics are what the controller counts. Series of a container go when it goes.
type metrics struct {
	registry    *prometheus.Registry
	attach      prometheus.Histogram
	change      prometheus.Histogram
	quarantines prometheus.Counter
	failures    *prometheus.CounterVec
	probes      *prometheus.CounterVec
	controller  *Controller
}

var (
	containersDesc = prometheus.NewDesc("sluice_containers", "Containers that are looked after.", []string{"state"}, nil)
	generationDesc = prometheus.NewDesc("sluice_generation", "Generation of the rules in force.", []string{"container"}, nil)
	cutDesc        = prometheus.NewDesc("sluice_flows_cut_total",
		"Flows that were ended because the rules in force no longer allow them, on both planes.", []string{"container"}, nil)
	uncoveredDesc = prometheus.NewDesc("sluice_uncovered_seconds",
		"How long the present run of a container went without its policy, or without what of it the host has.", []string{"container"}, nil)
	weakDesc = prometheus.NewDesc("sluice_weak",
		"1 if a container might get round its policy in a way that was accepted.", []string{"container"}, nil)
)

var packetsDesc = prometheus.NewDesc("sluice_packets_total",
	"Packets that the rules inside of a container have judged, on the planes proxy and dns one a connection; without a phase where it does not matter.",
	[]string{"container", "phase", "plane", "verdict"}, nil)

func newMetrics(c *Controller) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		attach: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_attach_seconds",
			Help: "How long attaching a container took.", Buckets: switchBuckets}),
		change: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_switch_seconds",
			Help: "How long switches took that changed something.", Buckets: switchBuckets}),
		quarantines: prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_quarantines_total",
			Help: "Steps that failed, after which a container was quarantined."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_failures_total",
			Help: "Operations that failed."}, []string{"operation"}),
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_probes_total",
			Help: "Probes that verified policies, by what they showed."}, []string{"verdict"}),
		controller: c,
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_build_info", Help: "Always 1.",
		ConstLabels: prometheus.Labels{"version": c.config.Version}})
	build.Set(1)
	for _, operation := range []string{"attach", "admit", "switch", "reconcile"} {
		m.failures.WithLabelValues(operation)
	}
	for _, v := range []api.Verdict{api.Passed, api.Leaked, api.Unproven, api.Broken, api.Skipped} {
		m.probes.WithLabelValues(string(v))
	}
	m.registry.MustRegister(m, m.attach, m.change, m.quarantines, m.failures, m.probes, build)
	m.registry.MustRegister(c.config.Collectors...)
	return m
}

func (m *metrics) failed(operation string) { m.failures.WithLabelValues(operation).Inc() }

// Describe implements [prometheus.Collector].
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{containersDesc, generationDesc, cutDesc, uncoveredDesc, weakDesc, packetsDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	states := map[api.State]int{api.Attached: 0, api.Quarantined: 0, api.Stopped: 0}
	seen := map[string]bool{} // a name may have moved from one container to another that is not known to have it yet
	var counting errgroup.Group
	counting.SetLimit(parallel)
	for _, member := range m.controller.all() {
		s := member.status()
		if s.State == "" || seen[s.Name] {
			continue
		}
		seen[s.Name] = true
		states[s.State]++
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, s.Name)
		}
		gauge(generationDesc, float64(s.Generation))
		gauge(uncoveredDesc, s.UncoveredMilliseconds/1000)
		gauge(weakDesc, float64(min(len(s.Weak), 1)))
		ch <- prometheus.MustNewConstMetric(cutDesc, prometheus.CounterValue, float64(member.cut.Load()), s.Name)
		if n := member.shown.Load().net; n != nil {
			counting.Go(func() error { collectPackets(ch, s.Name, n); return nil })
		}
	}
	_ = counting.Wait() // nothing fails
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(containersDesc, prometheus.GaugeValue, float64(n), string(state))
	}
}

// collectPackets sends what a container's rules have counted. Where they cannot be read, it has ended as a rule.
func collectPackets(ch chan<- prometheus.Metric, container string, n Net) {
	packets, err := n.Packets()
	if err != nil {
		return
	}
	count := func(number uint64, phase, plane string, verdict matcher.Verdict) {
		ch <- prometheus.MustNewConstMetric(packetsDesc, prometheus.CounterValue, float64(number), container, phase, plane, verdict.String())
	}
	for i := range packets.Direct {
		phase := policy.Phase(i).String()
		count(packets.Direct[i], phase, "direct", matcher.Allow)
		count(packets.Refused[i], phase, "direct", matcher.Refuse)
	}
	count(packets.Never, "", "direct", matcher.Refuse)
	count(packets.Proxied, "", "proxy", matcher.Allow)
	count(packets.DNS, "", "dns", matcher.Allow)
	count(packets.Forged, "", "guard", matcher.Refuse)
}

// Metrics answers GET /metrics.
func (c *Controller) Metrics() http.Handler {
	return promhttp.HandlerFor(c.metrics.registry, promhttp.HandlerOpts{})
}
