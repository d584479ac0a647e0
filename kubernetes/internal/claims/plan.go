// Package claims says what an allocated claim means for nodes: which grant, on which node, and what its containers need.
package claims

import (
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"aviary.dev/kubernetes/internal/node"
)

const (
	// TenantPrefix and a claim's UID are the name of its grant.
	TenantPrefix = "k8s-"
	// Here is the device of each node that stands for the node itself.
	Here = "here"
	// Memory, Share are the capacities of an accelerator.
	Memory, Share = "memory", "share"

	wholeShare  = 100
	labelLength = 128
)

// Part is one allocation of a device of this driver.
type Part struct {
	Request, Pool, Device string
	ShareID               *types.UID
	Memory, Share         int64
	// APIs that the request's parameters leave of the device's; nil: all.
	APIs []string
}

// Plan is what is to be done for a claim.
type Plan struct {
	UID, Namespace, Name string
	// Pool of the accelerators: the node that has them. Empty: there are none.
	Pool string
	// Parts of accelerators; Places: of `here`.
	Parts, Places []Part
	// Config is that of all parts together, but for APIs.
	Config AcceleratorConfig
}

// Mistake is what only the author of a claim or of its class can mend.
type Mistake struct{ text string }

func (m *Mistake) Error() string { return m.text }

func mistake(format string, values ...any) error { return &Mistake{fmt.Sprintf(format, values...)} }

// IsForUser says whether asking again is of no use.
func IsForUser(err error) bool {
	var wrong *Mistake
	var field *FieldError
	return errors.As(err, &wrong) || errors.As(err, &field)
}

// Tenant is the name of the claim's grant.
func Tenant(uid string) string { return TenantPrefix + uid }

// Of reads what was allocated. An error is the user's to mend.
func Of(claim *resourceapi.ResourceClaim) (*Plan, error) {
	plan := &Plan{UID: string(claim.UID), Namespace: claim.Namespace, Name: claim.Name}
	if claim.Status.Allocation == nil {
		return nil, fmt.Errorf("claim %s/%s is not allocated", claim.Namespace, claim.Name)
	}
	allocation := claim.Status.Allocation.Devices
	for _, result := range allocation.Results {
		if result.Driver != Driver {
			continue
		}
		if result.AdminAccess != nil && *result.AdminAccess {
			return nil, mistake("request %s: there is no admin access to accelerators; leave adminAccess out", result.Request)
		}
		memory, share := result.ConsumedCapacity[Memory], result.ConsumedCapacity[Share]
		part := Part{result.Request, result.Pool, result.Device, result.ShareID, memory.Value(), share.Value(), nil}
		if result.Device == Here {
			plan.Places = append(plan.Places, part)
			continue
		}
		if plan.Pool != "" && plan.Pool != part.Pool {
			return nil, mistake("its devices are of two nodes, %s and %s, but a claim's are of one: make two claims, or a "+
				"constraint with matchAttribute %s/node", plan.Pool, part.Pool, Driver)
		}
		plan.Pool = part.Pool
		plan.Parts = append(plan.Parts, part)
	}
	return plan, plan.configure(allocation.Config)
}

// configure reads the parameters of all parts.
func (p *Plan) configure(entries []resourceapi.DeviceAllocationConfiguration) error {
	for i := range p.Parts {
		config, err := merged(entries, p.Parts[i].Request)
		if err != nil {
			return err
		}
		p.Parts[i].APIs, config.APIs = config.APIs, nil
		if i == 0 {
			p.Config = *config
		} else if err := p.Config.meet(config); err != nil {
			return err
		}
	}
	return nil
}

// Narrowed are the APIs of a part's device that its parameters leave.
func (p *Part) Narrowed(apis []string) ([]string, error) {
	if p.APIs == nil {
		return apis, nil
	}
	for _, api := range p.APIs {
		if !slices.Contains(apis, api) {
			return nil, &FieldError{"apis", api, fmt.Sprintf("the device has %v", apis)}
		}
	}
	return p.APIs, nil
}

// IsRemote says whether the accelerators are another node's.
func (p *Plan) IsRemote(self string) bool { return p.Pool != "" && p.Pool != self }

func (p *Plan) labels() map[string]string {
	labels := map[string]string{"namespace": p.Namespace}
	if len(p.Name) <= labelLength {
		labels["claim"] = p.Name
	}
	return labels
}

// Known is what the node that has a device knows of it.
type Known struct {
	// Name is that by which its daemon knows it.
	Name string
	APIs []string
	// HasMemory: its vendor's library says how much memory it has, so that claims have parts of it.
	HasMemory bool
}

// Grant is that of the node that has the devices.
func (p *Plan) Grant(entrance node.Entrance, known func(device string) (Known, error)) (node.Grant, error) {
	grant := node.Grant{Name: Tenant(p.UID), Entrance: entrance, Labels: p.labels(), Sessions: p.Config.Sessions,
		Threads: p.Config.Threads}
	shares, memory, hasMemory := map[string]int64{}, map[string]int64{}, map[string]bool{}
	var apis []string
	// What a part leaves out of its device's APIs, with the part's request.
	leftOut := map[string]string{}
	for _, part := range p.Parts {
		device, err := known(part.Device)
		if err != nil {
			return grant, err
		}
		name, its := device.Name, device.APIs
		if !slices.Contains(grant.OnlyDevices, name) {
			grant.OnlyDevices = append(grant.OnlyDevices, name)
		}
		if its, err = part.Narrowed(its); err != nil {
			return grant, err
		}
		apis = append(apis, its...)
		for _, api := range device.APIs {
			if !slices.Contains(its, api) {
				leftOut[api] = part.Request
			}
		}
		shares[name] += part.Share
		memory[name] += part.Memory
		hasMemory[name] = hasMemory[name] || device.HasMemory
	}
	for _, name := range grant.OnlyDevices {
		if hasMemory[name] || memory[name] > 0 {
			limit := uint64(max(memory[name], 0))
			grant.DeviceLimits = append(grant.DeviceLimits, node.DeviceLimit{Device: name, Resource: "device_memory", Limit: &limit})
		}
		if shares[name] != shares[grant.OnlyDevices[0]] {
			return grant, mistake("its shares of the devices %s and %s are not the same: make two claims", grant.OnlyDevices[0], name)
		}
	}
	if share := shares[grant.OnlyDevices[0]]; share > 0 {
		if share > wholeShare {
			return grant, mistake("its share of %s is more than %d together", grant.OnlyDevices[0], wholeShare)
		}
		grant.Share = &share
	}
	slices.Sort(apis)
	grant.APIs = slices.Compact(apis)
	// A tenant may use all of its devices by all of its APIs.
	for _, api := range grant.APIs {
		if request, ok := leftOut[api]; ok {
			return grant, mistake("request %s leaves %s out of the APIs of its device, and another request has it: make two claims", request, api)
		}
	}
	return grant, p.Config.apply(&grant)
}

// apply narrows a grant to what the parameters say of all devices.
func (c *AcceleratorConfig) apply(grant *node.Grant) error {
	if c.Cap != "" {
		most, err := thousandths(c.Cap)
		if err != nil {
			return err
		}
		grant.Cap = &most
	}
	if c.Priority != nil {
		grant.Priority = *c.Priority
	}
	if c.Functions != nil {
		grant.Functions = &node.Functions{Allow: c.Functions.Allow, Deny: c.Functions.Deny}
	}
	for name, limit := range c.Limits {
		if grant.Limits == nil {
			grant.Limits = map[string]uint64{}
		}
		grant.Limits[name] = uint64(max(limit.Value(), 0))
	}
	return nil
}

// Relay is the grant of the node whose containers use another node's devices.
func (p *Plan) Relay(folder, address, pin string) node.Grant {
	return node.Grant{Name: Tenant(p.UID), Entrance: node.Entrance{Socket: folder}, Labels: p.labels(),
		Sessions: p.Config.Sessions, Via: &node.Via{Node: address, Pin: pin}}
}

// IsUsedBy says whether a claim is allocated so that a node has something to do with it: it has the device, or the pod.
func IsUsedBy(claim *resourceapi.ResourceClaim, name string) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver == Driver && result.Pool == name {
			return true
		}
	}
	selector := claim.Status.Allocation.NodeSelector
	if selector == nil {
		return true
	}
	for _, term := range selector.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == "metadata.name" && slices.Contains(field.Values, name) {
				return true
			}
		}
	}
	return false
}
