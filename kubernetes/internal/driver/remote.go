package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	acmeta "k8s.io/client-go/applyconfigurations/meta/v1"
	ac "k8s.io/client-go/applyconfigurations/resource/v1"

	"aviary.dev/kubernetes/internal/claims"
)

const answerPoll = 50 * time.Millisecond

// Field managers of a claim's status. Each node has its own, so that none takes away what another one has written.
func (d *Driver) manager(what string) string { return "aviary-" + what + "-" + d.Node }

// grantRemote asks the node that has the devices for a grant for a key of this node's, and makes a grant whose guests are carried
// there. Nothing secret leaves this node.
func (d *Driver) grantRemote(ctx context.Context, plan *claims.Plan, isNew bool) ([]string, error) {
	far, err := d.published(ctx, plan)
	if err != nil {
		return nil, err
	}
	if err := d.step("grant"); err != nil {
		return nil, err
	}
	report, err := d.makeFor(ctx, plan.Relay(d.folder(plan.UID), far.address, far.pin), isNew)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", d.Node, err)
	}
	if report.Via == nil || report.Via.Key == "" {
		return nil, fmt.Errorf("node %s has made no key for claim %s", d.Node, plan.UID)
	}
	if err := d.step("ask"); err != nil {
		return nil, err
	}
	return far.apis, d.ask(ctx, plan, report.Via.Key)
}

// published is what the slices of a pool say about where its node is, and by which APIs the claim's devices are used.
func (d *Driver) published(ctx context.Context, plan *claims.Plan) (*place, error) {
	list, err := d.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + claims.Driver})
	if err != nil {
		return nil, err
	}
	devices := map[string]*resourceapi.Device{}
	for _, slice := range list.Items {
		if slice.Spec.Driver == claims.Driver && slice.Spec.Pool.Name == plan.Pool {
			for i := range slice.Spec.Devices {
				devices[slice.Spec.Devices[i].Name] = &slice.Spec.Devices[i]
			}
		}
	}
	var found *place
	var apis []string
	for _, part := range plan.Parts {
		device := devices[part.Device]
		if device == nil {
			return nil, fmt.Errorf("node %s does not publish device %s any more", plan.Pool, part.Device)
		}
		if found, err = placeOf(device, plan.Pool); err != nil {
			return nil, err
		}
		its, err := part.Narrowed(found.apis)
		if err != nil {
			return nil, err
		}
		apis = append(apis, its...)
	}
	slices.Sort(apis)
	found.apis = slices.Compact(apis)
	return found, nil
}

// ask writes the key into the claim's status, and waits for the answer of the devices' node.
func (d *Driver) ask(ctx context.Context, plan *claims.Plan, key string) error {
	data, err := json.Marshal(claims.NewAccess(key))
	if err != nil {
		return err
	}
	// An old one at worst: then the key is written again.
	claim, err := d.known(ctx, plan)
	if err != nil {
		return err
	}
	if claims.KeyOf(claim, plan) != key {
		status := d.entry(plan.Parts[0]).WithData(runtime.RawExtension{Raw: data})
		if err := d.apply(ctx, plan, "pod", status); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(d.Patience)
	for {
		claim, err := d.known(ctx, plan)
		if err != nil {
			return err
		}
		if answer := claims.AnswerTo(claim, plan.Parts[0], key); answer != nil {
			if answer.Status == metav1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("node %s refuses the claim: %s", plan.Pool, strings.TrimSuffix(answer.Message, " key "+key))
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("node %s, which has the device, has not answered within %s: is its plugin running?", plan.Pool, d.Patience)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s, which has the device, has not answered: %w", plan.Pool, ctx.Err())
		case <-time.After(answerPoll):
		}
	}
}

// known is a claim as it was last seen.
func (d *Driver) known(ctx context.Context, plan *claims.Plan) (*resourceapi.ResourceClaim, error) {
	d.mutex.Lock()
	lister := d.claims
	d.mutex.Unlock()
	var claim *resourceapi.ResourceClaim
	var err error
	if lister != nil {
		claim, err = lister.ResourceClaims(plan.Namespace).Get(plan.Name)
	}
	if lister == nil || apierrors.IsNotFound(err) {
		claim, err = d.client.ResourceV1().ResourceClaims(plan.Namespace).Get(ctx, plan.Name, metav1.GetOptions{})
	}
	if err == nil && string(claim.UID) != plan.UID {
		err = fmt.Errorf("claim %s/%s is another one now", plan.Namespace, plan.Name)
	}
	return claim, err
}

func (d *Driver) entry(part claims.Part) *ac.AllocatedDeviceStatusApplyConfiguration {
	status := ac.AllocatedDeviceStatus().WithDriver(claims.Driver).WithPool(part.Pool).WithDevice(part.Device)
	if part.ShareID != nil {
		status = status.WithShareID(string(*part.ShareID))
	}
	return status
}

// apply writes one entry of a claim's status, of this claim and of none that has its name later.
func (d *Driver) apply(ctx context.Context, plan *claims.Plan, what string, status *ac.AllocatedDeviceStatusApplyConfiguration) error {
	whole := ac.ResourceClaim(plan.Name, plan.Namespace).WithUID(types.UID(plan.UID)).
		WithStatus(ac.ResourceClaimStatus().WithDevices(status))
	_, err := d.client.ResourceV1().ResourceClaims(plan.Namespace).ApplyStatus(ctx, whole,
		metav1.ApplyOptions{FieldManager: d.manager(what), Force: true})
	return err
}

// tellReady answers the node of the pod.
func (d *Driver) tellReady(ctx context.Context, claim *resourceapi.ResourceClaim, plan *claims.Plan, key string, refusal error) error {
	state, reason, message := metav1.ConditionTrue, "Granted", "granted to"
	if refusal != nil {
		state, reason, message = metav1.ConditionFalse, "Refused", refusal.Error()
	}
	message += " key " + key
	part := plan.Parts[0]
	for _, one := range plan.Parts {
		if status := claims.StatusOf(claim, one); status != nil && status.Data != nil {
			part = one
			if answer := claims.AnswerTo(claim, one, key); answer != nil && answer.Status == state && answer.Message == message {
				return nil
			}
		}
	}
	condition := acmeta.Condition().WithType(claims.Ready).WithStatus(state).WithReason(reason).WithMessage(message).
		WithLastTransitionTime(metav1.Now())
	err := d.apply(ctx, plan, "device", d.entry(part).WithConditions(condition))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
