package metrics

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Buckets are cumulative, a bound belongs to its bucket, and what takes longer than all is in the total.
func TestWhatIsTold(t *testing.T) {
	counted := New()
	for _, took := range []time.Duration{0, 10 * time.Millisecond, 11 * time.Millisecond, time.Minute} {
		counted.Count(Prepare, took, nil)
	}
	counted.Count(Answer, time.Second, errors.New("no"))
	server := httptest.NewServer(counted.Handler(func() map[string]int { return map[string]int{"lost": 1, "healthy": 2} }))
	defer server.Close()
	answer, err := server.Client().Get(server.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var said strings.Builder
	if err := answer.Write(&said); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`aviary_plugin_seconds_bucket{operation="prepare",le="0.001"} 1`,
		`aviary_plugin_seconds_bucket{operation="prepare",le="0.01"} 2`,
		`aviary_plugin_seconds_bucket{operation="prepare",le="0.025"} 3`,
		`aviary_plugin_seconds_bucket{operation="prepare",le="10"} 3`,
		`aviary_plugin_seconds_bucket{operation="prepare",le="+Inf"} 4`,
		`aviary_plugin_seconds_sum{operation="prepare"} 60.021`,
		`aviary_plugin_errors_total{operation="prepare"} 0`,
		`aviary_plugin_errors_total{operation="answer"} 1`,
		`aviary_plugin_devices{health="healthy"} 2`,
		`aviary_plugin_devices{health="lost"} 1`,
	} {
		if !strings.Contains(said.String(), line+"\n") {
			t.Errorf("%s is not in\n%s", line, said.String())
		}
	}
}
