package driver

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"aviary.dev/kubernetes/internal/claims"
	"aviary.dev/kubernetes/internal/node"
)

const grace = 5 * time.Minute

// ill is a list of one device, which is so.
func ill(reason string) []node.Device {
	return []node.Device{{API: "opencl", Name: deviceName, Healthy: reason == "", Reason: &reason}}
}

// taintsIn a pool of the only accelerator; `absent`: it is not published.
func taintsIn(t *testing.T, resources *resourceslice.DriverResources) []string {
	t.Helper()
	found := []string{}
	for _, slice := range resources.Pools["n1"].Slices {
		for _, device := range slice.Devices {
			if device.Name == claims.Here {
				continue
			}
			for _, one := range device.Taints {
				found = append(found, one.Key[len(claims.Driver)+1:]+"="+one.Value+":"+string(one.Effect))
			}
			return found
		}
	}
	return []string{"absent"}
}

// clockwork is a driver of n1 on a clock that the test sets.
func clockwork(w *world) (*Driver, *time.Time) {
	driver, now := w.driver("n1", nil), time.Unix(1_000_000, 0)
	driver.Grace = grace
	driver.now = func() time.Time { return now }
	driver.setHealth(now)
	return driver, &now
}

// A device that ails gets no claims; one that is lost is left after its grace and not before, counted from when it was lost.
func TestTaintsOfHealth(t *testing.T) {
	w := newWorld(t)
	driver, now := clockwork(w)
	for _, step := range []struct {
		after  time.Duration
		reason string
		taints []string
	}{
		{0, "", nil},
		{time.Hour, "it has pages that wait to be retired", []string{"unhealthy=ailing:NoSchedule"}},
		{time.Hour, "it has pages that wait to be retired", []string{"unhealthy=ailing:NoSchedule"}},
		{time.Second, lostReason + ": it has left the bus", []string{"unhealthy=lost:NoSchedule"}},
		{grace - time.Nanosecond, lostReason, []string{"unhealthy=lost:NoSchedule"}},
		{time.Nanosecond, lostReason, []string{"unhealthy=lost:NoSchedule", "unhealthy=lost:NoExecute"}},
		{time.Second, "", nil},
		{time.Second, lostReason, []string{"unhealthy=lost:NoSchedule"}},
		{grace, lostReason, []string{"unhealthy=lost:NoSchedule", "unhealthy=lost:NoExecute"}},
	} {
		*now = now.Add(step.after)
		w.nodes["n1"].list = ill(step.reason)
		resources, err := driver.look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := taintsIn(t, resources); !slices.Equal(got, step.taints) {
			t.Fatalf("%+v: %v", step, got)
		}
		report := driver.healthReport().Devices[1]
		if (report.Health == kubeletplugin.HealthStatusHealthy) != (step.reason == "") || report.Message != step.reason {
			t.Fatalf("%+v: %+v", step, report)
		}
	}
	driver.Grace = 0
	*now = now.Add(1000 * time.Hour)
	resources, _ := driver.look(t.Context())
	if got := taintsIn(t, resources); !slices.Equal(got, []string{"unhealthy=lost:NoSchedule"}) {
		t.Fatalf("without a grace nobody is evicted: %v", got)
	}
}

// What several APIs say of one device: the worst counts.
func TestTheWorstCounts(t *testing.T) {
	worse, worst := "it is warm", lostReason
	list := []node.Device{{API: "a", Name: "x", Healthy: true}, {API: "b", Name: "x", Reason: &worst}, {API: "c", Name: "x", Reason: &worse}}
	if one := accelerators(list)[sliceName("x")]; one.condition != lost || one.reason != worst || len(one.apis) != 3 {
		t.Fatalf("%+v", one)
	}
}

// watching has the driver know all claims, until the test ends.
func (w *world) watching(driver *Driver) {
	ctx, stop := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	w.t.Cleanup(func() { stop(); <-done })
	go func() { defer close(done); _ = driver.Watch(ctx) }()
	for driver.used() == nil {
		time.Sleep(time.Millisecond)
	}
}

// A device that vanishes from the daemon's list is lost while a claim has it, also for a plugin that has never seen it, and gets no
// grants; when no claim has it, it is not published.
func TestAVanishedDeviceIsLost(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("u1", "n1", 25)
	w.nodes["n1"].list = nil
	driver, now := clockwork(w)
	driver.devices = nil
	w.watching(driver)
	for _, taints := range [][]string{{"unhealthy=lost:NoSchedule"}, {"unhealthy=lost:NoSchedule", "unhealthy=lost:NoExecute"}} {
		resources, err := driver.look(t.Context())
		if got := taintsIn(t, resources); err != nil || !slices.Equal(got, taints) {
			t.Fatalf("%v %v", got, err)
		}
		*now = now.Add(grace)
	}
	if _, err := driver.prepare(t.Context(), claim); err == nil {
		t.Fatal("prepared")
	}
	w.delete(claim)
	for len(driver.used()) > 0 {
		time.Sleep(time.Millisecond)
	}
	resources, _ := driver.look(t.Context())
	if got := taintsIn(t, resources); !slices.Equal(got, []string{"absent"}) {
		t.Fatal(got)
	}
}

// standing is the node's object.
func standing(cordoned, evacuated bool) *corev1.Node {
	made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Unschedulable: cordoned}}
	if evacuated {
		made.Annotations = map[string]string{Evacuate: ""}
	}
	return made
}

// A cordoned node's devices get no claims; its own `here` has no taints.
func TestCordoned(t *testing.T) {
	w := newWorld(t)
	driver, _ := clockwork(w)
	driver.stand(t.Context(), standing(true, false))
	select {
	case <-driver.changed:
	default:
		t.Fatal("the publisher sleeps")
	}
	resources, _ := driver.look(t.Context())
	if got := taintsIn(t, resources); !slices.Equal(got, []string{"cordoned=:NoSchedule"}) {
		t.Fatal(got)
	}
	if here := resources.Pools["n1"].Slices[0].Devices[0]; here.Name != claims.Here || here.Taints != nil {
		t.Fatalf("%+v", here)
	}
	driver.stand(t.Context(), standing(false, false))
	resources, _ = driver.look(t.Context())
	if got := taintsIn(t, resources); len(got) > 0 {
		t.Fatal(got)
	}
}

// Sessions of claims are parked before a pod may be evicted, each once, and those that cannot be do not hold it up.
func TestEvacuated(t *testing.T) {
	w := newWorld(t)
	w.claim("u1", "n1", 25)
	daemon := w.nodes["n1"]
	daemon.sessions = []node.Session{{Number: 1, Tenant: "k8s-u1"}, {Number: 2, Tenant: "hand"}, {Number: 3, Tenant: "k8s-u2"},
		{Number: 4, Tenant: "k8s-u1", Parked: true}}
	daemon.stuck = map[uint64]string{3: "a callback is outstanding"}
	driver, _ := clockwork(w)
	w.watching(driver)
	var evicted atomic.Int64
	var asked []uint64
	daemon.parking = func(session uint64) {
		asked = append(asked, session)
		resources, err := driver.look(t.Context())
		if err != nil || slices.Contains(taintsIn(t, resources), "evacuated=:NoExecute") {
			evicted.Add(1)
		}
	}
	// Nobody is evicted before the daemon, which is away for a moment, was asked. What an earlier evacuation has found says nothing.
	daemon.setAway(true)
	driver.stand(t.Context(), standing(true, true))
	driver.stand(t.Context(), standing(true, false))
	driver.stand(t.Context(), standing(true, true))
	driver.stand(t.Context(), standing(true, true))
	time.Sleep(2 * awayPoll)
	if driver.isParking(1) || !driver.isParking(2) {
		t.Fatalf("%+v", driver.stance)
	}
	daemon.setAway(false)
	for {
		resources, err := driver.look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := taintsIn(t, resources)
		if slices.Contains(got, "evacuated=:NoExecute") {
			break
		}
		if !slices.Equal(got, []string{"cordoned=:NoSchedule", "evacuated=:NoSchedule"}) {
			t.Fatal(got)
		}
		time.Sleep(time.Millisecond)
	}
	if !slices.Equal(asked, []uint64{1, 3}) || evicted.Load() > 0 || !daemon.sessions[0].Parked || daemon.sessions[1].Parked {
		t.Fatalf("%v %v %+v", asked, evicted.Load(), daemon.sessions)
	}
	driver.stand(t.Context(), standing(false, false))
	resources, _ := driver.look(t.Context())
	if got := taintsIn(t, resources); len(got) > 0 {
		t.Fatal(got)
	}
}
