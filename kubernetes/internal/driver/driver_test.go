package driver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"aviary.dev/kubernetes/internal/cdi"
	"aviary.dev/kubernetes/internal/claims"
	"aviary.dev/kubernetes/internal/node"
	"aviary.dev/kubernetes/internal/store"
)

// daemon is a node daemon in memory.
type daemon struct {
	mutex  sync.Mutex
	grants map[string]node.Grant
	list   []node.Device
	away   bool
	keys   int
	// hangs is the grant of which a session does not end.
	hangs string
	// sessions, and why some cannot be parked.
	sessions []node.Session
	stuck    map[uint64]string
	// parking is told of each that is asked to park, before it is.
	parking func(session uint64)
}

func (d *daemon) Devices(context.Context) ([]node.Device, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.away {
		return nil, node.ErrAway
	}
	return d.list, nil
}

func (d *daemon) Grants(context.Context) ([]node.GrantReport, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.away {
		return nil, node.ErrAway
	}
	var all []node.GrantReport
	for _, grant := range d.grants {
		all = append(all, node.GrantReport{Grant: grant})
	}
	return all, nil
}

func (d *daemon) Grant(_ context.Context, grant node.Grant) (node.GrantReport, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.away {
		return node.GrantReport{}, node.ErrAway
	}
	held, known := d.grants[grant.Name]
	if known && (held.Entrance != grant.Entrance || !held.Via.LeadsTo(grant.Via)) {
		return node.GrantReport{}, &node.Refusal{Reason: "another entrance"}
	}
	var sum int64
	for name, other := range d.grants {
		if name != grant.Name && other.Share != nil && grant.Share != nil && other.OnlyDevices[0] == grant.OnlyDevices[0] {
			sum += *other.Share
		}
	}
	if grant.Share != nil && sum+*grant.Share > 100 {
		return node.GrantReport{}, &node.Refusal{Reason: "would give away more"}
	}
	if grant.Via != nil {
		via := *grant.Via
		if known {
			via.Key = held.Via.Key
		} else {
			d.keys++
			via.Key = fmt.Sprintf("%064d", d.keys)
		}
		grant.Via = &via
	}
	d.grants[grant.Name] = grant
	return node.GrantReport{Grant: grant}, nil
}

func (d *daemon) Revoke(ctx context.Context, name string) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.away {
		return node.ErrAway
	}
	if name == d.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	delete(d.grants, name)
	return nil
}

func (d *daemon) Sessions(context.Context) ([]node.Session, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.away {
		return nil, node.ErrAway
	}
	return slices.Clone(d.sessions), nil
}

func (d *daemon) Park(_ context.Context, session uint64) error {
	if d.parking != nil {
		d.parking(session)
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if why, ok := d.stuck[session]; ok {
		return &node.Refusal{Reason: why}
	}
	for i := range d.sessions {
		d.sessions[i].Parked = d.sessions[i].Parked || d.sessions[i].Number == session
	}
	return nil
}

// held is a grant, or none with an empty name.
func (d *daemon) held(name string) node.Grant {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.grants[name]
}

func (d *daemon) names() []string {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	var names []string
	for name := range d.grants {
		names = append(names, name)
	}
	return names
}

// world is a cluster of two nodes, of which the first has the device.
type world struct {
	t      *testing.T
	client *fake.Clientset
	nodes  map[string]*daemon
	root   string
}

const deviceName = "A Device"

func newWorld(t *testing.T) *world {
	memory := int64(16 << 30)
	w := &world{t: t, client: fake.NewClientset(), root: t.TempDir(), nodes: map[string]*daemon{
		"n1": {grants: map[string]node.Grant{}, list: []node.Device{{API: "opencl", Name: deviceName, Memory: &memory, Healthy: true}}},
		"n2": {grants: map[string]node.Grant{}},
	}}
	library := filepath.Join(w.root, "lib/opencl")
	if err := os.MkdirAll(library, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(library, "api.json"), []byte(`{"library": "libOpenCL.so.1"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	first := w.driver("n1", nil)
	pool := first.pool(accelerators(w.nodes["n1"].list), nil)
	for _, part := range pool.Pools["n1"].Slices {
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
			Driver: claims.Driver, Pool: resourceapi.ResourcePool{Name: "n1"}, Devices: part.Devices}}
		if _, err := w.client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// driver is the next process of a node's plugin. `hook` ends it.
func (w *world) driver(name string, hook func(string) error) *Driver {
	kept, err := store.Open(filepath.Join(w.root, name, "claims"))
	if err != nil {
		w.t.Fatal(err)
	}
	files := cdi.Files{Folder: filepath.Join(w.root, name, "cdi"), Libraries: filepath.Join(w.root, "lib")}
	if err := os.MkdirAll(files.Folder, 0o755); err != nil {
		w.t.Fatal(err)
	}
	settings := Settings{Node: name, Sockets: "/run/aviary/grants", Address: "h:1", Pin: strings.Repeat("a", 64), Patience: 5 * time.Second}
	driver := New(settings, w.client, w.nodes[name], kept, files)
	driver.hook = hook
	driver.devices = accelerators(w.nodes[name].list)
	return driver
}

// claim is one that was allocated for a pod of a node.
func (w *world) claim(uid, pod string, share int64) *resourceapi.ResourceClaim {
	return w.named("c-"+uid, uid, pod, share)
}

func (w *world) named(name, uid, pod string, share int64) *resourceapi.ResourceClaim {
	id := types.UID("share-" + uid)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(uid)}}
	claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: claims.Driver, Pool: "n1", Device: sliceName(deviceName), ShareID: &id,
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
				claims.Memory: resource.MustParse("256Mi"), claims.Share: *resource.NewQuantity(share, resource.DecimalSI)}}}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{pod}}}}}},
	}
	made, err := w.client.ResourceV1().ResourceClaims("default").Create(w.t.Context(), claim, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

func (w *world) delete(claim *resourceapi.ResourceClaim) {
	if err := w.client.ResourceV1().ResourceClaims("default").Delete(w.t.Context(), claim.Name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// answering has a plugin of n1 that answers, until the test ends.
func (w *world) answering(claim *resourceapi.ResourceClaim) {
	far := w.driver("n1", nil)
	ctx, stop := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	w.t.Cleanup(func() { stop(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			now, err := w.client.ResourceV1().ResourceClaims("default").Get(ctx, claim.Name, metav1.GetOptions{})
			if err == nil {
				_ = far.answer(ctx, now)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
}

// left says what a node still has of claims.
func (w *world) left(name string) []string {
	driver := w.driver(name, nil)
	held, err := driver.held(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	var left []string
	for uid := range held {
		left = append(left, uid)
	}
	slices.Sort(left)
	return left
}

func (w *world) whole(name string, claim *resourceapi.ResourceClaim) {
	w.t.Helper()
	driver := w.driver(name, nil)
	entry, err := driver.store.Get(string(claim.UID))
	files, _ := driver.cdi.UIDs()
	if err != nil || entry == nil || entry.State != store.Prepared || !slices.Equal(files, []string{string(claim.UID)}) ||
		!slices.Equal(w.nodes[name].names(), []string{claims.Tenant(string(claim.UID))}) {
		w.t.Fatalf("%s: %v %v, files %v, grants %v", name, entry, err, files, w.nodes[name].names())
	}
}

var errKilled = errors.New("killed")

// killedAt ends a process at its step of that number; it counts how many there were.
func killedAt(number int, count *int) func(string) error {
	return func(string) error {
		*count++
		if *count > number {
			return errKilled
		}
		return nil
	}
}

// A plugin that is killed at any step of prepare leaves what the next process finishes or takes back.
func TestPrepareIsKilledAtEachStep(t *testing.T) {
	for _, pod := range []string{"n1", "n2"} {
		for number := 0; ; number++ {
			steps := 0
			for _, after := range []string{"prepare", "unprepare", "vanish"} {
				w := newWorld(t)
				claim := w.claim("u1", pod, 25)
				if pod == "n2" {
					w.answering(claim)
				}
				steps = 0
				_, err := w.driver(pod, killedAt(number, &steps)).prepare(t.Context(), claim)
				if killed := errors.Is(err, errKilled); killed != (steps > number) {
					t.Fatalf("%v", err)
				}
				next := w.driver(pod, nil)
				switch after {
				case "prepare":
					for range 2 {
						if _, err := next.prepare(t.Context(), claim); err != nil {
							t.Fatalf("step %d: %v", number, err)
						}
					}
					w.whole(pod, claim)
					continue
				case "unprepare":
					if err := next.unprepare(t.Context(), "u1"); err != nil {
						t.Fatal(err)
					}
				case "vanish":
					w.delete(claim)
					if err := next.Sweep(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if left := w.left(pod); len(left) > 0 {
					t.Fatalf("killed at step %d, then %s: %v", number, after, left)
				}
			}
			if steps <= number {
				break
			}
		}
	}
}

// The same for unprepare.
func TestUnprepareIsKilledAtEachStep(t *testing.T) {
	for number := 0; ; number++ {
		steps := 0
		for _, again := range []string{"unprepare", "vanish", "prepare"} {
			w := newWorld(t)
			claim := w.claim("u1", "n1", 25)
			if _, err := w.driver("n1", nil).prepare(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
			steps = 0
			err := w.driver("n1", killedAt(number, &steps)).unprepare(t.Context(), "u1")
			if killed := errors.Is(err, errKilled); killed != (steps > number) {
				t.Fatalf("%v", err)
			}
			next := w.driver("n1", nil)
			switch again {
			case "prepare":
				if _, err := next.prepare(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
				w.whole("n1", claim)
				continue
			case "vanish":
				w.delete(claim)
				err = next.Sweep(t.Context())
			default:
				err = next.unprepare(t.Context(), "u1")
			}
			if err != nil || len(w.left("n1")) > 0 {
				t.Fatalf("killed at step %d, then %s: %v %v", number, again, err, w.left("n1"))
			}
		}
		if steps <= number {
			break
		}
	}
}

// A claim of a pod of n2 has a grant on both nodes; when it is gone, none.
func TestRemoteClaim(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("u1", "n2", 25)
	w.answering(claim)
	results, err := w.driver("n2", nil).PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	if err != nil || results["u1"].Err != nil || len(results["u1"].Devices) != 1 {
		t.Fatalf("%v %v", results, err)
	}
	if ids := results["u1"].Devices[0].CDIDeviceIDs; !slices.Equal(ids, []string{"accel.aviary.dev/claim=u1"}) {
		t.Fatal(ids)
	}
	near, far := w.nodes["n2"].held("k8s-u1"), w.nodes["n1"].held("k8s-u1")
	limit := far.DeviceLimits[0]
	if near.Via == nil || near.Via.Node != "h:1" || far.Entrance.Key != near.Via.Key || *far.Share != 25 ||
		limit.Device != deviceName || limit.Resource != "device_memory" || *limit.Limit != 256<<20 {
		t.Fatalf("%+v %+v", near, far)
	}
	unprepared, _ := w.driver("n2", nil).UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "u1"}})
	if unprepared["u1"] != nil || len(w.left("n2")) > 0 || len(w.left("n1")) != 1 {
		t.Fatalf("%v %v %v", unprepared, w.left("n2"), w.left("n1"))
	}
	w.delete(claim)
	if err := w.driver("n1", nil).Sweep(t.Context()); err != nil || len(w.left("n1")) > 0 {
		t.Fatalf("%v %v", err, w.left("n1"))
	}
}

// Another node that is silent is named; one that refuses says why.
func TestTheFarNodeIsSilentOrRefuses(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("u1", "n2", 60)
	near := w.driver("n2", nil)
	near.Patience = 50 * time.Millisecond
	if _, err := near.prepare(t.Context(), claim); err == nil || !strings.Contains(err.Error(), "node n1, which has the device, has not answered") {
		t.Fatal(err)
	}
	share := int64(50)
	w.nodes["n1"].grants["hand"] = node.Grant{Name: "hand", Share: &share, OnlyDevices: []string{deviceName}}
	w.answering(claim)
	near.Patience = 5 * time.Second
	if _, err := near.prepare(t.Context(), claim); err == nil || !strings.Contains(err.Error(), "node n1 refuses the claim: would give away more") {
		t.Fatal(err)
	}
}

// Claims of one name in turn are told apart by their UIDs.
func TestOneNameTwice(t *testing.T) {
	w := newWorld(t)
	first := w.claim("u1", "n1", 25)
	if _, err := w.driver("n1", nil).prepare(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	w.delete(first)
	second := w.named(first.Name, "u2", "n1", 25)
	if _, err := w.driver("n1", nil).prepare(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if err := w.driver("n1", nil).Sweep(t.Context()); err != nil || !slices.Equal(w.left("n1"), []string{"u2"}) {
		t.Fatalf("%v %v", err, w.left("n1"))
	}
}

// A checkpoint that was damaged is no claim's; what its file's name says is taken back.
func TestDamagedCheckpoint(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("u1", "n1", 25)
	if _, err := w.driver("n1", nil).prepare(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(w.root, "n1/claims/u1.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"", "{", strings.Replace(string(data), "default", "defau1t", 1), strings.Replace(string(data), `"version":1`, `"version":9`, 1)} {
		if err := os.WriteFile(path, []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := w.driver("n1", nil).store.Get("u1"); !errors.Is(err, store.ErrDamaged) {
			t.Fatalf("%q: %v", wrong, err)
		}
	}
	if err := w.driver("n1", nil).unprepare(t.Context(), "u1"); err != nil || len(w.left("n1")) > 0 {
		t.Fatalf("%v %v", err, w.left("n1"))
	}
}

// A daemon that is away fails the claim, which is prepared when it is back; what is not taken back stays known.
func TestTheDaemonIsAway(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("u1", "n1", 25)
	w.nodes["n1"].away = true
	if _, err := w.driver("n1", nil).prepare(t.Context(), claim); err == nil {
		t.Fatal("prepared")
	}
	w.nodes["n1"].away = false
	if _, err := w.driver("n1", nil).prepare(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	w.whole("n1", claim)
	w.nodes["n1"].away = true
	if err := w.driver("n1", nil).unprepare(t.Context(), "u1"); err == nil {
		t.Fatal("unprepared")
	}
	w.nodes["n1"].away = false
	if !slices.Equal(w.left("n1"), []string{"u1"}) {
		t.Fatal(w.left("n1"))
	}
}

// What is published: one device for a node that several APIs have, less what grants made by hand have; none while nobody answers.
func TestPublished(t *testing.T) {
	w := newWorld(t)
	memory, share := int64(10<<20+5), int64(30)
	w.nodes["n1"].list = []node.Device{{API: "nvml", Name: deviceName, Healthy: true}, {API: "cuda", Name: deviceName, Memory: &memory}}
	w.nodes["n1"].grants = map[string]node.Grant{
		"k8s-x": {Name: "k8s-x", Share: &share, OnlyDevices: []string{deviceName}},
		"hand":  {Name: "hand", Share: &share, OnlyDevices: []string{"A*"}, Limits: map[string]uint64{"device_memory": 2 << 20}},
		"other": {Name: "other", Share: &share, OnlyDevices: []string{"B"}},
	}
	driver := w.driver("n1", nil)
	resources, err := driver.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := resources.Pools["n1"].Slices[0].Devices
	if len(list) != 2 || list[0].Name != claims.Here || *list[0].NodeName != "n1" {
		t.Fatalf("%+v", list)
	}
	one := list[1]
	got, free := one.Capacity[claims.Memory].Value, one.Capacity[claims.Share].Value
	if got.Value() != 8<<20 || free.Value() != 70 || !*one.AllNodes || !*one.Attributes["cuda"].BoolValue || len(one.Taints) != 1 {
		t.Fatalf("%+v", one)
	}
	// Whoever has all of its memory by hand, or says so in any number: no claim gets any of it.
	for _, memory := range []uint64{10 << 20, math.MaxUint64} {
		w.nodes["n1"].grants["hand"] = node.Grant{Name: "hand", Limits: map[string]uint64{"device_memory": memory}}
		if resources, err := driver.look(t.Context()); err != nil || len(resources.Pools["n1"].Slices[0].Devices) != 1 {
			t.Fatalf("%+v %v", resources, err)
		}
	}
	w.nodes["n1"].away = true
	if resources, err := driver.look(t.Context()); resources != nil || err == nil {
		t.Fatal("it stays as it was")
	}
	driver.setHealth(time.Now().Add(-2 * emptyAfter))
	if resources, _ := driver.look(t.Context()); len(resources.Pools["n1"].Slices[0].Devices) != 1 {
		t.Fatal("it is empty now")
	}
}
