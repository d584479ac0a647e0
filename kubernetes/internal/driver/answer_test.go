package driver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"aviary.dev/kubernetes/internal/claims"
	"aviary.dev/kubernetes/internal/node"
)

// hang is when something counts as one that never comes.
const hang = 4 * time.Minute

func (d *daemon) setAway(away bool) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.away = away
}

// now is a claim as it is.
func (w *world) now(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	w.t.Helper()
	now, err := w.client.ResourceV1().ResourceClaims("default").Get(w.t.Context(), claim.Name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return now
}

// A claim that is asked for while the daemon of the device's node is away is answered when it is back, although nobody changes the
// claim any more; what was granted stays so while it is away.
func TestTheDaemonOfTheDeviceIsAway(t *testing.T) {
	w := newWorld(t)
	far := w.driver("n1", nil)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- far.Watch(ctx) }()
	defer func() { stop(); <-done }()
	w.nodes["n1"].setAway(true)
	claim := w.claim("u1", "n2", 25)
	near := w.driver("n2", nil)
	if _, err := near.prepare(t.Context(), claim); err == nil || !strings.Contains(err.Error(), "node n1 refuses the claim: "+node.ErrAway.Error()) {
		t.Fatal(err)
	}
	w.nodes["n1"].setAway(false)
	for end := time.Now().Add(hang); ; time.Sleep(10 * time.Millisecond) {
		_, err := near.prepare(t.Context(), claim)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	w.nodes["n1"].setAway(true)
	if err := far.answer(t.Context(), w.now(claim)); !errors.Is(err, node.ErrAway) {
		t.Fatal(err)
	}
	plan, err := claims.Of(claim)
	if err != nil || !claims.IsReady(w.now(claim), plan, claims.KeyOf(w.now(claim), plan)) {
		t.Fatalf("%v %+v", err, w.now(claim).Status.Devices)
	}
	w.nodes["n1"].setAway(false)
}

// What only the claim's author can mend is said once, and not asked again.
func TestAMistakeIsNotAskedAgain(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("u1", "n2", 101)
	far := w.driver("n1", nil)
	data := `{"apiVersion": "accel.aviary.dev/v1alpha1", "kind": "ClaimAccess", "key": "k"}`
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: claims.Driver, Pool: "n1", Device: sliceName(deviceName),
		ShareID: (*string)(claim.Status.Allocation.Devices.Results[0].ShareID)}}
	claim.Status.Devices[0].Data = &runtime.RawExtension{Raw: []byte(data)}
	claim, err := w.client.ResourceV1().ResourceClaims("default").UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := far.answer(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	if answer := w.now(claim).Status.Devices[0].Conditions; len(answer) != 1 || !strings.Contains(answer[0].Message, "more than 100 together") {
		t.Fatalf("%+v", answer)
	}
}

// A grant of which a session does not end keeps no other claim's.
func TestOneThatHangsKeepsNoOther(t *testing.T) {
	w := newWorld(t)
	driver := w.driver("n1", nil)
	driver.patience = 20 * time.Millisecond
	for _, uid := range []string{"u1", "u2", "u3"} {
		claim := w.claim(uid, "n1", 25)
		if _, err := driver.prepare(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		w.delete(claim)
	}
	w.nodes["n1"].hangs = "k8s-u2"
	if err := driver.Sweep(t.Context()); !errors.Is(err, context.DeadlineExceeded) || !slices.Equal(w.left("n1"), []string{"u2"}) {
		t.Fatalf("%v %v", err, w.left("n1"))
	}
	w.nodes["n1"].hangs = ""
	if err := driver.Sweep(t.Context()); err != nil || len(w.left("n1")) > 0 {
		t.Fatalf("%v %v", err, w.left("n1"))
	}
}

// A grant of another way in or out gives way to a claim that is not prepared yet, and to no other.
func TestAnotherWayGivesWay(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("u1", "n1", 25)
	w.nodes["n1"].grants["k8s-u1"] = node.Grant{Name: "k8s-u1", Entrance: node.Entrance{Key: "of another pod's node"}}
	driver := w.driver("n1", nil)
	if _, err := driver.prepare(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	w.whole("n1", claim)
	w.nodes["n1"].grants["k8s-u1"] = node.Grant{Name: "k8s-u1", Entrance: node.Entrance{Key: "by hand"}}
	if _, err := driver.prepare(t.Context(), claim); err == nil || w.nodes["n1"].held("k8s-u1").Entrance.Key != "by hand" {
		t.Fatal("a grant that a pod may use was revoked")
	}

	w = newWorld(t)
	claim = w.claim("u2", "n2", 25)
	near := w.driver("n2", nil)
	near.Patience = 20 * time.Millisecond
	if _, err := near.prepare(t.Context(), claim); err == nil {
		t.Fatal("nobody has answered")
	}
	relay := w.nodes["n2"].held("k8s-u2")
	moved := *relay.Via
	moved.Node = "elsewhere:1"
	relay.Via = &moved
	w.nodes["n2"].grants["k8s-u2"] = relay
	w.answering(claim)
	near.Patience = 5 * time.Second
	if _, err := near.prepare(t.Context(), claim); err != nil || w.nodes["n2"].held("k8s-u2").Via.Node != "h:1" {
		t.Fatalf("%v %+v", err, w.nodes["n2"].held("k8s-u2"))
	}
}
