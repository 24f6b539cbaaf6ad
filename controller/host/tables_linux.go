package host

import (
	"github.com/prometheus/client_golang/prometheus"

	"sluice/dockernet/engine"
)

// Tables tells how full those tables of the kernel are that all containers of the host share, so that one of them can take
// room from the others whatever its policy allows it.
type Tables struct{}

var (
	connectionsDesc = prometheus.NewDesc("sluice_host_connections",
		"Connections that the host's connection tracking knows of. When there are as many as may be, new ones of all containers fail.", nil, nil)
	connectionsLimitDesc = prometheus.NewDesc("sluice_host_connections_limit",
		"How many connections the host's connection tracking may know of (nf_conntrack_max).", nil, nil)
	neighbourOverflowsDesc = prometheus.NewDesc("sluice_host_neighbour_overflows_total",
		"Times that the host's table of neighbours, which all containers share, had no room.", []string{"family"}, nil)
)

// Describe implements [prometheus.Collector].
func (Tables) Describe(ch chan<- *prometheus.Desc) {
	ch <- connectionsDesc
	ch <- connectionsLimitDesc
	ch <- neighbourOverflowsDesc
}

// Collect implements [prometheus.Collector].
func (Tables) Collect(ch chan<- prometheus.Metric) {
	if count, most, err := engine.Connections(); err == nil { // else there is no tracking, nor a limit
		ch <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(count))
		ch <- prometheus.MustNewConstMetric(connectionsLimitDesc, prometheus.GaugeValue, float64(most))
	}
	for family, n := range engine.NeighbourOverflows() {
		ch <- prometheus.MustNewConstMetric(neighbourOverflowsDesc, prometheus.CounterValue, float64(n), family)
	}
}
