package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	listers "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"aviary.dev/kubernetes/internal/claims"
	"aviary.dev/kubernetes/internal/node"
)

// Evacuate is the annotation of a node whose devices are to be left. Its value does not matter.
const Evacuate = "aviary.dev/evacuate"

// How long an evacuation waits for a daemon that is away, and how often it asks.
const (
	awayPatience = time.Minute
	awayPoll     = 200 * time.Millisecond
)

// evacuation of the node's devices: staying -> parking -> leaving, and back to staying when the annotation goes.
type evacuation int

const (
	// staying: nobody asks for it.
	staying evacuation = iota
	// parking: sessions are taken off the devices; claims keep them.
	parking
	// leaving: that was tried with every session; pods are evicted.
	leaving
)

// WatchNode follows what the node's own object says, until the context ends.
func (d *Driver) WatchNode(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(d.client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", d.Node).String()
	}))
	see := func(object any) {
		if node, ok := object.(*corev1.Node); ok && node.Name == d.Node {
			d.stand(ctx, node)
		}
	}
	_, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, object any) { see(object) }})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	return nil
}

// stand takes over what the node's object says.
func (d *Driver) stand(ctx context.Context, object *corev1.Node) {
	_, wanted := object.Annotations[Evacuate]
	d.mutex.Lock()
	before := d.stance
	d.stance.cordoned = object.Spec.Unschedulable
	switch {
	case !wanted:
		d.stance.evacuation = staying
	case before.evacuation == staying:
		d.stance.evacuation = parking
	}
	now := d.stance
	begins := now.evacuation == parking && before.evacuation == staying
	if begins {
		d.evacuations++
	}
	number := d.evacuations
	d.mutex.Unlock()
	if now != before {
		d.wakePublisher()
	}
	if begins {
		go d.parkAll(ctx, number)
	}
}

// isParking says whether that evacuation is still wanted; another one may have begun since.
func (d *Driver) isParking(number int) bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.stance.evacuation == parking && d.evacuations == number
}

// sessions of the node, which may be away for a moment; none if it stays away or the evacuation is over.
func (d *Driver) sessions(ctx context.Context, number int) []node.Session {
	for end := d.now().Add(awayPatience); ; {
		sessions, err := d.node.Sessions(ctx)
		if err == nil {
			return sessions
		}
		if !d.isParking(number) || d.now().After(end) {
			klog.FromContext(ctx).Error(err, "sessions are not parked")
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(awayPoll):
		}
	}
}

// parkAll takes what can be taken off this node's devices, and then lets the pods be evicted. `number` is the evacuation's.
func (d *Driver) parkAll(ctx context.Context, number int) {
	sessions := d.sessions(ctx, number)
	var tried []uint64
	for _, session := range sessions {
		uid, ours := strings.CutPrefix(session.Tenant, claims.TenantPrefix)
		if !ours || session.Parked || slices.Contains(tried, session.Number) {
			continue
		}
		tried = append(tried, session.Number)
		reason, message := "Parked", fmt.Sprintf("session %d is parked, as node %s is to be left", session.Number, d.Node)
		if err := d.node.Park(ctx, session.Number); err != nil {
			reason, message = "NotParked", fmt.Sprintf("session %d stays on its device: %v", session.Number, err)
		}
		klog.FromContext(ctx).Info(message, "uid", uid)
		if claim := d.byUID(uid); claim != nil {
			d.tell(ctx, claim, reason, message)
		}
	}
	d.mutex.Lock()
	if d.stance.evacuation == parking && d.evacuations == number {
		d.stance.evacuation = leaving
	}
	d.mutex.Unlock()
	d.wakePublisher()
}

// byUID is a claim as it was last seen; nil: it is not known.
func (d *Driver) byUID(uid string) *resourceapi.ResourceClaim {
	d.mutex.Lock()
	lister := d.claims
	d.mutex.Unlock()
	if lister == nil {
		return nil
	}
	for _, claim := range allOf(lister) {
		if string(claim.UID) == uid {
			return claim
		}
	}
	return nil
}

// allOf are the claims that a cache has; it has no errors.
func allOf(lister listers.ResourceClaimLister) []*resourceapi.ResourceClaim {
	all, _ := lister.List(labels.Everything())
	return all
}

// wakePublisher has the pool looked at again at once.
func (d *Driver) wakePublisher() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}
