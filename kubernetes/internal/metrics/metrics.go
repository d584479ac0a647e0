// Package metrics counts what the plugin does, and says it as Prometheus reads it. All of it is of this process: nothing is kept.
package metrics

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Operation is what is counted.
type Operation string

const (
	// Prepare and Unprepare are of one claim each, with all that was waited for.
	Prepare   Operation = "prepare"
	Unprepare Operation = "unprepare"
	// Answer is of a claim of another node's pod.
	Answer Operation = "answer"
	// Grant is the node daemon's part of a prepare or answer.
	Grant Operation = "grant"
)

var operations = []Operation{Prepare, Unprepare, Answer, Grant}

// bounds of the buckets, in seconds: a local claim takes milliseconds, one of another node waits for that.
var bounds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

// tally of one operation.
type tally struct {
	// buckets are counts up to each bound; what takes longer is in the total only.
	buckets []uint64
	total   uint64
	errors  uint64
	seconds float64
}

// Metrics of a plugin.
type Metrics struct {
	mutex   sync.Mutex
	tallies map[Operation]*tally
}

// New has counted nothing.
func New() *Metrics {
	made := &Metrics{tallies: map[Operation]*tally{}}
	for _, one := range operations {
		made.tallies[one] = &tally{buckets: make([]uint64, len(bounds))}
	}
	return made
}

// Count one operation that has ended.
func (m *Metrics) Count(operation Operation, took time.Duration, err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	one := m.tallies[operation]
	if at, _ := slices.BinarySearch(bounds, took.Seconds()); at < len(bounds) {
		one.buckets[at]++
	}
	one.total++
	one.seconds += took.Seconds()
	if err != nil {
		one.errors++
	}
}

// Write says everything. `devices`: how many this node has, by their health.
func (m *Metrics) Write(out io.Writer, devices map[string]int) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	head := func(name, kind, help string) {
		fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	const times, errors, there = "aviary_plugin_seconds", "aviary_plugin_errors_total", "aviary_plugin_devices"
	head(times, "histogram", "Seconds that an operation on one claim took, whether it failed or not.")
	for _, operation := range operations {
		one, sum := m.tallies[operation], uint64(0)
		for at, bound := range bounds {
			sum += one.buckets[at]
			fmt.Fprintf(out, "%s_bucket{operation=%q,le=%q} %d\n", times, operation, strconv.FormatFloat(bound, 'g', -1, 64), sum)
		}
		fmt.Fprintf(out, "%s_bucket{operation=%q,le=\"+Inf\"} %d\n", times, operation, one.total)
		fmt.Fprintf(out, "%s_sum{operation=%q} %g\n%s_count{operation=%q} %d\n", times, operation, one.seconds, times, operation, one.total)
	}
	head(errors, "counter", "Operations that failed; the kubelet, or the plugin, tries again.")
	for _, operation := range operations {
		fmt.Fprintf(out, "%s{operation=%q} %d\n", errors, operation, m.tallies[operation].errors)
	}
	head(there, "gauge", "Accelerators of this node, by health.")
	for _, health := range slices.Sorted(maps.Keys(devices)) {
		fmt.Fprintf(out, "%s{health=%q} %d\n", there, health, devices[health])
	}
}

// Handler answers /metrics.
func (m *Metrics) Handler(devices func() map[string]int) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(answer http.ResponseWriter, _ *http.Request) {
		answer.Header().Set("Content-Type", "text/plain; version=0.0.4")
		m.Write(answer, devices())
	})
	return mux
}
