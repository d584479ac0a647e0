package driver

import (
	"context"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"aviary.dev/kubernetes/internal/claims"
)

const (
	healthInterval = 10 * time.Second
	// Keys of taints of devices.
	taintUnhealthy = claims.Driver + "/unhealthy"
	taintCordoned  = claims.Driver + "/cordoned"
	taintEvacuated = claims.Driver + "/evacuated"
	// lostReason is how the node daemon's reason begins of a device that is gone for its vendor's library.
	lostReason = "the device is lost"
	// goneReason is told of a device that claims have and that the daemon does not list.
	goneReason = "the node daemon does not list the device any more"
)

// condition of a device, as the daemon tells it.
type condition int

const (
	healthy condition = iota
	// ailing devices work, but something is wrong with them: they get no further claims.
	ailing
	// lost devices do not work: who uses them is evicted after a while.
	lost
)

// String is what taints and metrics call it.
func (c condition) String() string { return [...]string{"healthy", "ailing", "lost"}[c] }

// conditionOf what the daemon says of one device.
func conditionOf(fine bool, reason string) condition {
	switch {
	case fine:
		return healthy
	case strings.HasPrefix(reason, lostReason):
		return lost
	}
	return ailing
}

// follow says since when devices are as they are. `before`: what it said last; `listed`: what the daemon lists now; `used`: devices
// that claims have. One that is used and not listed any more is lost.
func follow(before, listed map[string]accelerator, used map[string]bool, now time.Time) map[string]accelerator {
	found := map[string]accelerator{}
	add := func(key string, one accelerator) {
		one.since = now
		if last, known := before[key]; known && last.condition == one.condition {
			one.since = last.since
		}
		found[key] = one
	}
	for key, one := range listed {
		add(key, one)
	}
	for key := range used {
		if _, there := listed[key]; there || key == claims.Here {
			continue
		}
		one, known := before[key]
		if !known {
			one = accelerator{name: key}
		}
		one.condition, one.reason = lost, goneReason
		add(key, one)
	}
	return found
}

// stance is what the node's object says of its devices.
type stance struct {
	// cordoned: it is unschedulable.
	cordoned   bool
	evacuation evacuation
}

// taintsOf a device: what its health and its node's object ask for, at a time. `grace` is how long claims keep a lost device; 0: for
// ever.
func taintsOf(one accelerator, node stance, grace time.Duration, now time.Time) []resourceapi.DeviceTaint {
	var taints []resourceapi.DeviceTaint
	add := func(key, value string, effect resourceapi.DeviceTaintEffect) {
		taints = append(taints, resourceapi.DeviceTaint{Key: key, Value: value, Effect: effect})
	}
	if one.condition != healthy {
		add(taintUnhealthy, one.condition.String(), resourceapi.DeviceTaintEffectNoSchedule)
	}
	if one.condition == lost && grace > 0 && now.Sub(one.since) >= grace {
		add(taintUnhealthy, one.condition.String(), resourceapi.DeviceTaintEffectNoExecute)
	}
	if node.cordoned {
		add(taintCordoned, "", resourceapi.DeviceTaintEffectNoSchedule)
	}
	if node.evacuation != staying {
		add(taintEvacuated, "", resourceapi.DeviceTaintEffectNoSchedule)
	}
	if node.evacuation == leaving {
		add(taintEvacuated, "", resourceapi.DeviceTaintEffectNoExecute)
	}
	return taints
}

// used are the devices of this node that claims have; nil: claims are not known yet.
func (d *Driver) used() map[string]bool {
	d.mutex.Lock()
	lister := d.claims
	d.mutex.Unlock()
	if lister == nil {
		return nil
	}
	found := map[string]bool{}
	for _, claim := range allOf(lister) {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.Driver == claims.Driver && result.Pool == d.Node {
				found[result.Device] = true
			}
		}
	}
	return found
}

// Conditions are how many devices are how.
func (d *Driver) Conditions() map[string]int {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	counts := map[string]int{}
	for one := healthy; one <= lost; one++ {
		counts[one.String()] = 0
	}
	for _, one := range d.devices {
		counts[one.condition.String()]++
	}
	return counts
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case reports <- d.healthReport():
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(healthInterval):
		}
	}
}

func (d *Driver) healthReport() kubeletplugin.DeviceHealthReport {
	silent := d.silence() > 2*publishInterval
	d.mutex.Lock()
	defer d.mutex.Unlock()
	now := d.now()
	report := kubeletplugin.DeviceHealthReport{Devices: []kubeletplugin.DeviceHealth{
		{PoolName: d.Node, DeviceName: claims.Here, Health: kubeletplugin.HealthStatusHealthy, LastUpdated: now}}}
	for key, one := range d.devices {
		line := kubeletplugin.DeviceHealth{PoolName: d.Node, DeviceName: key, LastUpdated: now,
			Health: kubeletplugin.HealthStatusHealthy}
		switch {
		case silent:
			line.Health, line.Message = kubeletplugin.HealthStatusUnknown, "the node daemon does not answer"
		case one.condition != healthy:
			line.Health, line.Message = kubeletplugin.HealthStatusUnhealthy, one.reason
		}
		report.Devices = append(report.Devices, line)
	}
	return report
}
