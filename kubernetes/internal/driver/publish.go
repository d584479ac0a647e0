package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"aviary.dev/kubernetes/internal/claims"
	"aviary.dev/kubernetes/internal/node"
)

const (
	publishInterval = 5 * time.Second
	// After this time without its daemon a node has no devices.
	emptyAfter    = 60 * time.Second
	mebibyte      = 1 << 20
	attributeSize = 64
	slugSize      = 40
)

// accelerator is a device of this node, by all APIs that list it.
type accelerator struct {
	name   string
	apis   []string
	memory int64
	// condition, why, and since when as far as this process knows.
	condition condition
	reason    string
	since     time.Time
	uuid      string
	driver    string
	pci       string
	numa      *int64
}

type health struct {
	// When the daemon answered last.
	answered time.Time
}

// place is where a device of another node is.
type place struct {
	address, pin string
	apis         []string
}

var (
	plain      = regexp.MustCompile(`[^a-z0-9]+`)
	identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// sliceName is a DNS label for a device, the same each time.
func sliceName(name string) string {
	slug := strings.Trim(plain.ReplaceAllString(strings.ToLower(name), "-"), "-")
	slug = strings.Trim(slug[:min(len(slug), slugSize)], "-")
	digest := sha256.Sum256([]byte(name))
	if slug == "" || slug == claims.Here {
		slug = "device"
	}
	return slug + "-" + hex.EncodeToString(digest[:3])
}

// accelerators are the devices of the daemon's list, each once.
func accelerators(list []node.Device) map[string]accelerator {
	text := func(value *string) string {
		if value == nil {
			return ""
		}
		return *value
	}
	found := map[string]accelerator{}
	for _, line := range list {
		if line.Name == "" {
			continue
		}
		key := sliceName(line.Name)
		one, known := found[key]
		if !known {
			one = accelerator{name: line.Name}
		}
		one.apis = append(one.apis, line.API)
		if line.Memory != nil {
			one.memory = max(one.memory, *line.Memory)
		}
		// Of what several APIs say the worst counts.
		if told := conditionOf(line.Healthy, text(line.Reason)); told > one.condition {
			one.condition, one.reason = told, text(line.Reason)
		}
		for own, other := range map[*string]*string{&one.uuid: line.UUID, &one.driver: line.Driver, &one.pci: line.PCI} {
			if *own == "" {
				*own = text(other)
			}
		}
		if one.numa == nil {
			one.numa = line.NUMA
		}
		found[key] = one
	}
	for key, one := range found {
		slices.Sort(one.apis)
		one.apis = slices.Compact(one.apis)
		found[key] = one
	}
	return found
}

// named is what the daemon calls a device of this node's slices, and its APIs.
func (d *Driver) describe(device string) (claims.Known, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.devices == nil {
		return claims.Known{}, fmt.Errorf("node %s: %w", d.Node, node.ErrUnknown)
	}
	one, ok := d.devices[device]
	if !ok {
		return claims.Known{}, fmt.Errorf("node %s has no device %s", d.Node, device)
	}
	if one.condition == lost {
		return claims.Known{}, fmt.Errorf("node %s: %s: %s", d.Node, device, one.reason)
	}
	return claims.Known{Name: one.name, APIs: slices.Clone(one.apis), HasMemory: one.memory > 0}, nil
}

func amount(value int64, least, step string) resourceapi.DeviceCapacity {
	whole, low, grain := *resource.NewQuantity(value, resource.BinarySI), resource.MustParse(least), resource.MustParse(step)
	return resourceapi.DeviceCapacity{Value: whole, RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default: &whole, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &low, Max: &whole, Step: &grain}}}
}

// text is as much of a value as an attribute holds, in whole characters: of others the API server takes no slice.
func text(value string) resourceapi.DeviceAttribute {
	end := min(len(value), attributeSize)
	for end > 0 && end < len(value) && !utf8.RuneStart(value[end]) {
		end--
	}
	cut := strings.ToValidUTF8(value[:end], "")
	return resourceapi.DeviceAttribute{StringValue: &cut}
}

// own are attributes that are not of APIs.
var own = []string{"kind", "node", "zone", "productName", "uuid", "driverVersion", "pciAddress", "numa", "address", "tlsPin"}

// isAttribute says whether an API can be told by its name: a slice with another one would be refused as a whole.
func isAttribute(api string) bool {
	return identifier.MatchString(api) && len(api) <= resourceapi.DeviceMaxIDLength && !slices.Contains(own, api)
}

// slice is a device as the scheduler sees it. `taken`: what grants have that are not this driver's; `node`: what its node says.
func (d *Driver) slice(key string, one accelerator, taken shareOf, node stance) resourceapi.Device {
	yes := true
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"kind": text("accelerator"), "node": text(d.Node), "productName": text(one.name),
	}
	for name, value := range map[resourceapi.QualifiedName]string{
		"uuid": one.uuid, "driverVersion": one.driver, "pciAddress": one.pci, "zone": d.Zone, "address": d.Address, "tlsPin": d.Pin,
	} {
		if value != "" {
			attributes[name] = text(value)
		}
	}
	if one.numa != nil {
		attributes["numa"] = resourceapi.DeviceAttribute{IntValue: one.numa}
	}
	for _, api := range slices.DeleteFunc(slices.Clone(one.apis), func(api string) bool { return !isAttribute(api) }) {
		attributes[resourceapi.QualifiedName(api)] = resourceapi.DeviceAttribute{BoolValue: &yes}
	}
	memory := max(one.memory-taken.memory, 0) / mebibyte * mebibyte
	device := resourceapi.Device{Name: key, Attributes: attributes, AllowMultipleAllocations: &yes, BindsToNode: &yes,
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			claims.Share: amount(max(100-taken.share, 0), "0", "1"),
		}}
	if memory >= mebibyte {
		device.Capacity[claims.Memory] = amount(memory, "1Mi", "1Mi")
	}
	if d.Address == "" {
		device.NodeName = &d.Node
	} else {
		device.AllNodes = &yes
	}
	device.Taints = taintsOf(one, node, d.Grace, d.now())
	return device
}

type shareOf struct{ memory, share int64 }

// takenBy is what grants that somebody else has made have of a device.
func takenBy(grants []node.GrantReport, name string) shareOf {
	var taken shareOf
	fits := func(pattern string) bool {
		start, open := strings.CutSuffix(pattern, "*")
		return pattern == name || open && strings.HasPrefix(name, start)
	}
	for _, grant := range grants {
		if strings.HasPrefix(grant.Name, claims.TenantPrefix) || grant.Via != nil ||
			grant.OnlyDevices != nil && !slices.ContainsFunc(grant.OnlyDevices, fits) {
			continue
		}
		if grant.Share != nil {
			taken.share += *grant.Share
		}
		memory, ok := grant.Limits["device_memory"]
		for _, limit := range grant.DeviceLimits {
			if limit.Limit != nil && limit.Resource == "device_memory" && fits(limit.Device) && (!ok || *limit.Limit < memory) {
				memory, ok = *limit.Limit, true
			}
		}
		// An operator may give any number of bytes.
		taken.memory = int64(min(uint64(taken.memory)+min(memory, math.MaxInt64), math.MaxInt64))
	}
	return taken
}

// pool is everything that this node publishes.
func (d *Driver) pool(devices map[string]accelerator, grants []node.GrantReport) resourceslice.DriverResources {
	yes := true
	here := resourceapi.Device{Name: claims.Here, AllowMultipleAllocations: &yes, NodeName: &d.Node,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"kind": text(claims.Here), "node": text(d.Node)}}
	if d.Zone != "" {
		here.Attributes["zone"] = text(d.Zone)
	}
	list := []resourceapi.Device{here}
	d.mutex.Lock()
	node := d.stance
	d.mutex.Unlock()
	for key, one := range devices {
		taken := takenBy(grants, one.name)
		// Of one whose memory somebody has given away by hand, no claim can have any.
		if one.memory >= mebibyte && one.memory-taken.memory < mebibyte {
			continue
		}
		list = append(list, d.slice(key, one, taken, node))
	}
	slices.SortFunc(list[1:], func(a, b resourceapi.Device) int { return strings.Compare(a.Name, b.Name) })
	pool := resourceslice.Pool{}
	// A slice with taints has room for 64.
	for part := range slices.Chunk(list, resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: part, PerDeviceNodeSelection: &yes})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.Node: pool}}
}

// Publisher is what Publish tells; kubeletplugin.Helper is one.
type Publisher interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
}

// Publish tells the cluster what the node has whenever that changes, until the context ends.
func (d *Driver) Publish(ctx context.Context, publisher Publisher) error {
	var last *resourceslice.DriverResources
	d.setHealth(d.now())
	for {
		resources, err := d.look(ctx)
		switch {
		case err == nil:
		case errors.Is(err, node.ErrUnknown):
		default:
			klog.FromContext(ctx).Error(err, "the node's devices are not known")
		}
		if resources != nil && (last == nil || !reflect.DeepEqual(*last, *resources)) {
			if err := publisher.PublishResources(ctx, *resources); err != nil {
				return err
			}
			last = resources
		}
		wait := publishInterval
		if errors.Is(err, node.ErrUnknown) {
			wait /= 25
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.changed:
		case <-time.After(wait):
		}
	}
}

// look asks the daemon; nil: what was published stays.
func (d *Driver) look(ctx context.Context) (*resourceslice.DriverResources, error) {
	list, err := d.node.Devices(ctx)
	var grants []node.GrantReport
	if err == nil {
		grants, err = d.node.Grants(ctx)
	}
	if err != nil {
		if d.silence() < emptyAfter || errors.Is(err, node.ErrUnknown) {
			return nil, err
		}
		empty := d.pool(nil, nil)
		return &empty, err
	}
	listed, used := accelerators(list), d.used()
	d.mutex.Lock()
	found := follow(d.devices, listed, used, d.now())
	d.devices = found
	d.mutex.Unlock()
	d.setHealth(d.now())
	resources := d.pool(found, grants)
	return &resources, nil
}

func (d *Driver) setHealth(now time.Time) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.health.answered = now
}

// silence is how long the daemon has not answered.
func (d *Driver) silence() time.Duration {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.now().Sub(d.health.answered)
}

// placeOf reads what another node's plugin has published.
func placeOf(device *resourceapi.Device, pool string) (*place, error) {
	read := func(name resourceapi.QualifiedName) string {
		if value := device.Attributes[name].StringValue; value != nil {
			return *value
		}
		return ""
	}
	found := place{address: read("address"), pin: read("tlsPin")}
	if found.address == "" || found.pin == "" {
		return nil, fmt.Errorf("node %s does not say where its daemon listens: give its plugin --address and --certificate", pool)
	}
	for name, value := range device.Attributes {
		if value.BoolValue != nil && *value.BoolValue {
			found.apis = append(found.apis, string(name))
		}
	}
	slices.Sort(found.apis)
	return &found, nil
}

// tell makes an event of a claim. What cannot be told is in the log.
func (d *Driver) tell(ctx context.Context, claim *resourceapi.ResourceClaim, reason, message string) {
	d.mutex.Lock()
	again := d.told[claim.UID] == message
	d.told[claim.UID] = message
	d.mutex.Unlock()
	// The kubelet tries again and again.
	if again {
		return
	}
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: claim.Name + ".", Namespace: claim.Namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim", Namespace: claim.Namespace,
			Name: claim.Name, UID: claim.UID},
		Reason: reason, Message: message[:min(len(message), 1024)], Type: corev1.EventTypeWarning, FirstTimestamp: now, LastTimestamp: now,
		Count: 1, Source: corev1.EventSource{Component: claims.Driver, Host: d.Node},
	}
	if _, err := d.client.CoreV1().Events(claim.Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		klog.FromContext(ctx).V(2).Info("no event", "reason", err.Error())
	}
}
