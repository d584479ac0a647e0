package claims

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"aviary.dev/kubernetes/internal/node"
)

const head = `{"apiVersion": "accel.aviary.dev/v1alpha1", "kind": "AcceleratorConfig"`

func TestWhatIsRefused(t *testing.T) {
	for text, expected := range map[string]string{
		head + `, "cpa": "3%"}`:                             `unknown field "cpa"`,
		head + `, "apis": []}`:                              "apis: []: expected one or more",
		head + `, "cap": "0%"}`:                             "cap: 0%: expected a percentage",
		head + `, "cap": "101%"}`:                           "cap: 101%",
		head + `, "cap": "1e1%"}`:                           "cap: 1e1%",
		head + `, "cap": "30"}`:                             "cap: 30:",
		head + `, "sessions": 0}`:                           "sessions: 0: expected 1 or more",
		head + `, "threads": 1.5}`:                          "not understood",
		head + `, "limits": {"device_memory": "1Gi"}}`:      "ask for it as capacity",
		head + `, "limits": {"handles": "-1"}}`:             "limits.handles: -1",
		head + `, "limits": {"handles": "some"}}`:           "not understood",
		`{"apiVersion": "v1", "kind": "AcceleratorConfig"}`: "expected accel.aviary.dev/v1alpha1",
	} {
		if _, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), expected) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func entry(source resourceapi.AllocationConfigSource, rest string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{Source: source, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: Driver, Parameters: runtime.RawExtension{Raw: []byte(head + rest + "}")}}}}
}

func TestAClaimNarrowsItsClass(t *testing.T) {
	class, claim := resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim
	config, err := merged([]resourceapi.DeviceAllocationConfiguration{
		entry(class, `, "cap": "50%", "sessions": 4, "apis": ["opencl", "cuda"]`), entry(claim, `, "cap": "30.5%"`), entry(claim, `, "cap": "20%"`)}, "gpu")
	if err != nil || config.Cap != "20%" || *config.Sessions != 4 {
		t.Fatalf("%+v %v", config, err)
	}
	var grant node.Grant
	if err := config.apply(&grant); err != nil || *grant.Cap != 200 || len(config.APIs) != 2 {
		t.Fatalf("%+v %v", grant, err)
	}
	for rest, expected := range map[string]string{
		`, "cap": "60%"`:               "AcceleratorConfig.cap: 60%: its class allows 50% at the most",
		`, "sessions": 5`:              "sessions: 5: its class allows 4",
		`, "priority": 1`:              "priority: 1: its class allows 0",
		`, "apis": ["nvml"]`:           "apis: nvml: its class allows opencl, cuda",
		`, "functions": {}`:            "functions",
		`, "limits": {"handles": "9"}`: "limits.handles: 9: its class allows 8",
	} {
		_, err := merged([]resourceapi.DeviceAllocationConfiguration{
			entry(class, `, "cap": "50%", "sessions": 4, "apis": ["opencl", "cuda"], "priority": 0, "functions": {"deny": ["f"]}, "limits": {"handles": "8"}`),
			entry(claim, rest)}, "gpu")
		if err == nil || !strings.Contains(err.Error(), expected) {
			t.Errorf("%s: %v", rest, err)
		}
	}
}

func TestNobodyIsBeforeOthersUnlessItsClassSaysSo(t *testing.T) {
	class, claim := resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim
	for _, one := range []struct {
		class, claim, expected string
	}{
		{`, "cap": "50%"`, `, "priority": 1`, "priority: 1: its class allows 0"},
		{`, "priority": 3`, `, "priority": 4`, "priority: 4: its class allows 3"},
		{`, "priority": 3`, `, "priority": 3`, ""},
		{``, `, "priority": -1`, ""},
	} {
		_, err := merged([]resourceapi.DeviceAllocationConfiguration{entry(class, one.class), entry(claim, one.claim)}, "gpu")
		if (err == nil) != (one.expected == "") || err != nil && !strings.Contains(err.Error(), one.expected) {
			t.Errorf("%+v: %v", one, err)
		}
	}
}

// of makes an entry one of some requests only.
func of(made resourceapi.DeviceAllocationConfiguration, requests ...string) resourceapi.DeviceAllocationConfiguration {
	made.Requests = requests
	return made
}

// planOf is that of a claim with a device for each request.
func planOf(requests []string, entries ...resourceapi.DeviceAllocationConfiguration) (*Plan, error) {
	claim := &resourceapi.ResourceClaim{}
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	for _, request := range requests {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: request, Driver: Driver, Pool: "n1", Device: "of-" + request})
	}
	claim.Status.Allocation.Devices.Config = entries
	return Of(claim)
}

func TestParametersAreOfTheirRequests(t *testing.T) {
	class, claim := resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim
	requests := []string{"a", "b/one"}
	plan, err := planOf(requests, of(entry(class, `, "apis": ["opencl"], "cap": "50%", "sessions": 3`), "a"),
		of(entry(class, `, "apis": ["opencl"], "cap": "40%", "threads": 9, "limits": {"handles": "5"}`), "b"),
		of(entry(claim, `, "limits": {"handles": "7"}, "priority": -2`), "a"), of(entry(claim, `, "cap": "1%"`), "b/two"))
	if err != nil {
		t.Fatal(err)
	}
	names := func(device string) (Known, error) {
		return Known{Name: device, APIs: []string{"cuda", "nvml", "opencl"}, HasMemory: true}, nil
	}
	grant, err := plan.Grant(node.Entrance{Key: "k"}, names)
	if err != nil || strings.Join(grant.APIs, " ") != "opencl" || *grant.Cap != 400 || *grant.Sessions != 3 || *grant.Threads != 9 ||
		grant.Limits["handles"] != 5 || grant.Priority != -2 || *grant.DeviceLimits[0].Limit != 0 {
		t.Fatalf("%+v %v", grant, err)
	}
	if _, err := planOf(requests, of(entry(claim, `, "functions": {"deny": ["f"]}`), "a")); err == nil || !strings.Contains(err.Error(), "make two claims") {
		t.Fatal(err)
	}
	plan, err = planOf(requests, of(entry(class, `, "apis": ["opae"]`), "b"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plan.Grant(node.Entrance{Key: "k"}, names); !IsForUser(err) || !strings.Contains(err.Error(), "apis: opae: the device has") {
		t.Fatal(err)
	}
	// What one request leaves out of its device's another one would bring back.
	for _, other := range []string{"", `, "apis": ["cuda"]`} {
		plan, err = planOf(requests, of(entry(class, `, "apis": ["opencl"]`), "a"), of(entry(class, other), "b"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := plan.Grant(node.Entrance{Key: "k"}, names); !IsForUser(err) || !strings.Contains(err.Error(), "request a leaves cuda out") {
			t.Fatal(err)
		}
	}
	// A device that has it not leaves nothing out.
	less := func(device string) (Known, error) {
		return Known{Name: device, APIs: []string{"opencl", "cuda"}[:1+strings.Count(device, "b")]}, nil
	}
	plan, _ = planOf(requests)
	if grant, err := plan.Grant(node.Entrance{Key: "k"}, less); err != nil || len(grant.APIs) != 2 || grant.DeviceLimits != nil {
		t.Fatalf("%+v %v", grant, err)
	}
}
