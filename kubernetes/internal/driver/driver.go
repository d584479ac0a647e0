// Package driver is the plugin itself: it publishes a node's accelerators, and makes and takes back what claims need on it.
package driver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"aviary.dev/kubernetes/internal/cdi"
	"aviary.dev/kubernetes/internal/claims"
	"aviary.dev/kubernetes/internal/metrics"
	"aviary.dev/kubernetes/internal/node"
	"aviary.dev/kubernetes/internal/store"
)

// Settings of a plugin.
type Settings struct {
	// Node is the name of the node that it runs on.
	Node string
	// Sockets is the folder of the grants' sockets, as the node daemon and the container runtime see it.
	Sockets string
	// Address is where other nodes reach the daemon, HOST:PORT; empty: its devices are for its own pods only.
	Address string
	// Pin is the SHA-256 of the daemon's certificate.
	Pin string
	// Zone of the node; empty: none is published.
	Zone string
	// Patience is how long another node may take to answer.
	Patience time.Duration
	// Grace is how long claims keep a device that is lost, before their pods are evicted; 0: for ever.
	Grace time.Duration
}

// Driver implements kubeletplugin.DRAPlugin.
type Driver struct {
	Settings
	// Metrics of this process.
	Metrics *metrics.Metrics
	client  kubernetes.Interface
	node    node.Node
	store   *store.Store
	cdi     cdi.Files
	// Of tests: called before each step with its name, and ends the plugin there with an error.
	hook func(step string) error
	// now is the clock; tests have another one.
	now func() time.Time
	// patience with sessions of a grant that is taken back; tests have less.
	patience time.Duration
	// changed wakes the publisher.
	changed chan struct{}

	mutex sync.Mutex
	busy  map[string]*lock
	// devices by the name that they have in slices, as they were last listed.
	devices map[string]accelerator
	health  health
	// stance is what the node's object says.
	stance stance
	// evacuations that have begun.
	evacuations int
	// claims of the whole cluster, as far as they are known; nil before Watch.
	claims listers.ResourceClaimLister
	// gone are claims that were deleted or are not allocated any more.
	gone chan claimName
	// mine are claims of which something may be on this node, by UID: those that this process has worked at or found.
	mine map[string]bool
	// told is the last reason that was told of a claim.
	told map[types.UID]string
}

// New makes a driver; it does nothing yet.
func New(settings Settings, client kubernetes.Interface, daemon node.Node, kept *store.Store, files cdi.Files) *Driver {
	return &Driver{Settings: settings, Metrics: metrics.New(), client: client, node: daemon, store: kept, cdi: files, busy: map[string]*lock{},
		told: map[types.UID]string{}, mine: map[string]bool{}, gone: make(chan claimName, 1024),
		now: time.Now, patience: revokePatience, changed: make(chan struct{}, 1)}
}

// lock of one claim, while somebody has it or waits for it.
type lock struct {
	sync.Mutex
	users int
}

// lock keeps two calls from working at one claim. A call of another claim does not wait: one may wait for another node.
func (d *Driver) lock(uid string) func() {
	d.mutex.Lock()
	one := d.busy[uid]
	if one == nil {
		one = &lock{}
		d.busy[uid] = one
	}
	one.users++
	d.mutex.Unlock()
	one.Lock()
	return func() {
		one.Unlock()
		d.mutex.Lock()
		defer d.mutex.Unlock()
		if one.users--; one.users == 0 {
			delete(d.busy, uid)
		}
	}
}

// mark notes that something of a claim may be here, or that nothing is.
func (d *Driver) mark(uid string, here bool) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if here {
		d.mine[uid] = true
	} else {
		delete(d.mine, uid)
		delete(d.told, types.UID(uid))
	}
}

// step is where tests end the plugin.
func (d *Driver) step(name string) error {
	if d.hook != nil {
		return d.hook(name)
	}
	return nil
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) PrepareResourceClaims(ctx context.Context, list []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range list {
		began := d.now()
		devices, err := d.prepare(ctx, claim)
		d.Metrics.Count(metrics.Prepare, d.now().Sub(began), err)
		if err != nil {
			klog.FromContext(ctx).Error(err, "claim is not prepared", "claim", klog.KObj(claim), "uid", claim.UID)
			d.tell(ctx, claim, "Refused", err.Error())
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Err: err, Devices: devices}
	}
	return results, nil
}

// prepare makes what a claim needs. Called again, also by the next process, it makes what is missing: each step changes nothing
// where it has been done.
func (d *Driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	plan, err := claims.Of(claim)
	if err != nil {
		return nil, err
	}
	if plan.Pool == "" {
		return d.prepared(plan), nil
	}
	defer d.lock(plan.UID)()
	d.mark(plan.UID, true)
	before, err := d.store.Get(plan.UID)
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return nil, err
	}
	isNew := before == nil || before.State != store.Prepared
	entry := store.Entry{UID: plan.UID, Namespace: plan.Namespace, Name: plan.Name, State: store.Preparing}
	if plan.IsRemote(d.Node) {
		entry.Pool = plan.Pool
	}
	if err := d.put(entry); err != nil {
		return nil, err
	}
	var apis []string
	if plan.IsRemote(d.Node) {
		apis, err = d.grantRemote(ctx, plan, isNew)
	} else {
		apis, err = d.grantHere(ctx, plan, isNew)
	}
	if err != nil {
		return nil, err
	}
	if err := d.step("cdi"); err != nil {
		return nil, err
	}
	if err := d.cdi.Write(plan.UID, d.folder(plan.UID), d.forContainers(apis)); err != nil {
		return nil, err
	}
	entry.State = store.Prepared
	return d.prepared(plan), d.put(entry)
}

func (d *Driver) put(entry store.Entry) error {
	if err := d.step("checkpoint " + string(entry.State)); err != nil {
		return err
	}
	return d.store.Put(entry)
}

func (d *Driver) folder(uid string) string { return filepath.Join(d.Sockets, claims.Tenant(uid)) }

// forContainers are the APIs of which this node has libraries.
func (d *Driver) forContainers(apis []string) []string {
	return slices.DeleteFunc(slices.Clone(apis), func(api string) bool { return !d.cdi.Has(api) })
}

func (d *Driver) grantHere(ctx context.Context, plan *claims.Plan, isNew bool) ([]string, error) {
	grant, err := plan.Grant(node.Entrance{Socket: d.folder(plan.UID)}, d.describe)
	if err != nil {
		return nil, err
	}
	if err := d.step("grant"); err != nil {
		return nil, err
	}
	if _, err := d.makeFor(ctx, grant, isNew); err != nil {
		return nil, fmt.Errorf("node %s: %w", d.Node, err)
	}
	return grant.APIs, nil
}

// makeFor makes the grant of a claim of this node's pod. One of another way in or out is in the way of a claim that is not prepared
// yet: it was for another node's pod, or for another address of the devices' node.
func (d *Driver) makeFor(ctx context.Context, grant node.Grant, isNew bool) (node.GrantReport, error) {
	report, refusal := d.make(ctx, grant)
	var said *node.Refusal
	if !isNew || !errors.As(refusal, &said) {
		return report, refusal
	}
	gone, err := d.revokeOther(ctx, grant)
	if err != nil || !gone {
		return report, errors.Join(refusal, err)
	}
	return d.make(ctx, grant)
}

// revokeOther takes back the grant of the same name if its guests come or go in another way.
func (d *Driver) revokeOther(ctx context.Context, grant node.Grant) (gone bool, err error) {
	held, err := d.node.Grants(ctx)
	if err != nil {
		return false, err
	}
	for _, one := range held {
		if one.Name == grant.Name && (one.Entrance != grant.Entrance || !one.Via.LeadsTo(grant.Via)) {
			return true, d.revoke(ctx, grant.Name)
		}
	}
	return false, nil
}

// make has the daemon make a grant, and counts how long that takes.
func (d *Driver) make(ctx context.Context, grant node.Grant) (node.GrantReport, error) {
	began := d.now()
	report, err := d.node.Grant(ctx, grant)
	d.Metrics.Count(metrics.Grant, d.now().Sub(began), err)
	return report, err
}

// prepared is what the kubelet is told: containers that name a request of an accelerator get the claim's file.
func (d *Driver) prepared(plan *claims.Plan) []kubeletplugin.Device {
	var devices []kubeletplugin.Device
	add := func(parts []claims.Part, ids []string) {
		for _, part := range parts {
			devices = append(devices, kubeletplugin.Device{Requests: []string{part.Request}, PoolName: part.Pool,
				DeviceName: part.Device, ShareID: part.ShareID, CDIDeviceIDs: ids})
		}
	}
	add(plan.Parts, []string{cdi.ID(plan.UID)})
	add(plan.Places, nil)
	return devices
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, list []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range list {
		began := d.now()
		err := d.unprepare(ctx, string(claim.UID))
		d.Metrics.Count(metrics.Unprepare, d.now().Sub(began), err)
		results[claim.UID] = err
	}
	return results, nil
}

func (d *Driver) unprepare(ctx context.Context, uid string) error {
	defer d.lock(uid)()
	return d.takeBack(ctx, uid)
}

// takeBack takes back what prepare has made, as far as it came. The grant of another node goes with the claim's allocation: its
// plugin sees that.
func (d *Driver) takeBack(ctx context.Context, uid string) error {
	entry, err := d.store.Get(uid)
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return err
	}
	if entry != nil {
		entry.State = store.Leaving
		if err := d.put(*entry); err != nil {
			return err
		}
	}
	if err := d.step("remove cdi"); err != nil {
		return err
	}
	if err := d.cdi.Remove(uid); err != nil {
		return err
	}
	if err := d.step("revoke"); err != nil {
		return err
	}
	if err := d.revoke(ctx, claims.Tenant(uid)); err != nil {
		return fmt.Errorf("node %s: %w", d.Node, err)
	}
	if err := d.step("forget"); err != nil {
		return err
	}
	if err := d.store.Delete(uid); err != nil {
		return err
	}
	d.mark(uid, false)
	return nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *Driver) HandleError(ctx context.Context, err error, message string) {
	klog.FromContext(ctx).Error(err, message)
}
