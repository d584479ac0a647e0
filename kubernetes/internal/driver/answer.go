package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	listers "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"aviary.dev/kubernetes/internal/claims"
	"aviary.dev/kubernetes/internal/metrics"
	"aviary.dev/kubernetes/internal/node"
)

const (
	sweepInterval = 30 * time.Second
	retryFirst    = 200 * time.Millisecond
	retryMost     = 30 * time.Second
	// What a claim has left is taken back within that, or the next one's is: a session may hang in its device's driver.
	revokePatience = 10 * time.Second
)

// Watch answers claims of other nodes' pods for devices of this node, and takes back what no claim has any more, until the context
// ends.
func (d *Driver) Watch(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(d.client, 0)
	informer := factory.Resource().V1().ResourceClaims()
	queue := workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](retryFirst, retryMost))
	defer queue.ShutDown()
	add := func(object any) {
		if name, err := cache.DeletionHandlingObjectToName(object); err == nil {
			queue.Add(name)
		}
	}
	remove := func(object any) {
		if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		if claim, ok := object.(*resourceapi.ResourceClaim); ok {
			// What it had goes at once: its capacity is free already.
			d.wakeSweep(claim)
		}
	}
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, object any) { add(object) }, DeleteFunc: remove})
	if err != nil {
		return err
	}
	lister := informer.Lister()
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
		return ctx.Err()
	}
	d.mutex.Lock()
	d.claims = lister
	d.mutex.Unlock()
	go d.sweepOften(ctx)
	go func() { <-ctx.Done(); queue.ShutDown() }()
	for {
		name, over := queue.Get()
		if over {
			return nil
		}
		if err := d.answerNamed(ctx, lister, name); err != nil {
			klog.FromContext(ctx).Error(err, "a claim of another node is not answered", "claim", name)
			queue.AddRateLimited(name)
		} else {
			queue.Forget(name)
		}
		queue.Done(name)
	}
}

func (d *Driver) answerNamed(ctx context.Context, lister listers.ResourceClaimLister, name cache.ObjectName) error {
	claim, err := lister.ResourceClaims(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if claim.Status.Allocation == nil {
		d.wakeSweep(claim)
		return nil
	}
	return d.answer(ctx, claim)
}

// answer grants to the key that another node shows for a claim of this node's devices, or takes that back.
func (d *Driver) answer(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	plan, refusal := claims.Of(claim)
	if plan == nil || plan.Pool != d.Node {
		return nil
	}
	key := claims.KeyOf(claim, plan)
	if key == "" {
		return nil
	}
	defer d.lock(plan.UID)()
	if entry, err := d.store.Get(plan.UID); err != nil || entry != nil {
		return errors.Join(err, fmt.Errorf("claim %s was prepared here, and is not unprepared yet", plan.UID))
	}
	d.mark(plan.UID, true)
	began := d.now()
	if refusal == nil {
		refusal = d.grantKey(ctx, plan, key)
	}
	d.Metrics.Count(metrics.Answer, d.now().Sub(began), refusal)
	if (errors.Is(refusal, node.ErrAway) || errors.Is(refusal, node.ErrUnknown)) && claims.IsReady(claim, plan, key) {
		// It has its grant, which is there again with the daemon and its list of devices.
		return refusal
	}
	told := d.tellReady(ctx, claim, plan, key, refusal)
	if claims.IsForUser(refusal) {
		return told
	}
	// It may be granted later: another claim's is being taken back, or the daemon or the device is away.
	return errors.Join(refusal, told)
}

func (d *Driver) grantKey(ctx context.Context, plan *claims.Plan, key string) error {
	grant, err := plan.Grant(node.Entrance{Key: key}, d.describe)
	if err != nil {
		return err
	}
	// The pod's node has made another key, for instance after its claim was unprepared there.
	if _, err := d.revokeOther(ctx, grant); err != nil {
		return err
	}
	_, err = d.make(ctx, grant)
	return err
}

// claimName is a claim, and by what name to look for it.
type claimName struct{ uid, namespace, name string }

// wakeSweep has what is here of a claim taken back. Most claims are other nodes'.
func (d *Driver) wakeSweep(claim *resourceapi.ResourceClaim) {
	d.mutex.Lock()
	here := d.mine[string(claim.UID)]
	d.mutex.Unlock()
	if !here {
		return
	}
	select {
	case d.gone <- claimName{string(claim.UID), claim.Namespace, claim.Name}:
	default:
		// The next look at everything finds it.
	}
}

func (d *Driver) sweepOften(ctx context.Context) {
	next := time.After(0)
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case claim := <-d.gone:
			err = d.sweepLocked(ctx, claim)
		case <-next:
			err = d.Sweep(ctx)
			next = time.After(sweepInterval)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "a claim that is gone holds something; it is tried again")
		}
	}
}

// Sweep takes back what this node has for claims that are gone, or are not allocated any more.
func (d *Driver) Sweep(ctx context.Context) error {
	held, err := d.held(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, claim := range held {
		d.mark(claim.uid, true)
		errs = append(errs, d.sweepLocked(ctx, claim))
	}
	return errors.Join(errs...)
}

// sweepLocked looks at one claim again with its lock held: it may have been allocated and prepared meanwhile.
func (d *Driver) sweepLocked(ctx context.Context, claim claimName) error {
	defer d.lock(claim.uid)()
	now, err := d.find(ctx, claim)
	if err != nil || now != nil && claims.IsUsedBy(now, d.Node) {
		return err
	}
	klog.FromContext(ctx).Info("taking back what a claim has left", "uid", claim.uid)
	return d.takeBack(ctx, claim.uid)
}

// revoke takes a grant back, as far as that goes within d.patience.
func (d *Driver) revoke(ctx context.Context, grant string) error {
	ctx, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	return d.node.Revoke(ctx, grant)
}

// find is a claim as it is now; nil: it is gone.
func (d *Driver) find(ctx context.Context, claim claimName) (*resourceapi.ResourceClaim, error) {
	if claim.name != "" {
		now, err := d.client.ResourceV1().ResourceClaims(claim.namespace).Get(ctx, claim.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && string(now.UID) != claim.uid {
			return nil, nil
		}
		return now, err
	}
	list, err := d.client.ResourceV1().ResourceClaims(claim.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if string(list.Items[i].UID) == claim.uid {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// held are the claims of which something is on this node, by UID.
func (d *Driver) held(ctx context.Context) (map[string]claimName, error) {
	found := map[string]claimName{}
	grants, err := d.node.Grants(ctx)
	if err != nil {
		return nil, err
	}
	for _, grant := range grants {
		if uid, ok := strings.CutPrefix(grant.Name, claims.TenantPrefix); ok {
			found[uid] = claimName{uid, grant.Labels["namespace"], grant.Labels["claim"]}
		}
	}
	files, err := d.cdi.UIDs()
	if err != nil {
		return nil, err
	}
	kept, err := d.store.UIDs()
	if err != nil {
		return nil, err
	}
	for _, uid := range append(files, kept...) {
		if _, ok := found[uid]; ok {
			continue
		}
		found[uid] = claimName{uid: uid}
		if entry, err := d.store.Get(uid); err == nil && entry != nil {
			found[uid] = claimName{uid, entry.Namespace, entry.Name}
		}
	}
	return found, nil
}
