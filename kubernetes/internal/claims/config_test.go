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
		entry(class, `, "cap": "50%", "sessions": 4, "apis": ["opencl", "cuda"]`), entry(claim, `, "cap": "30.5%"`), entry(claim, `, "cap": "20%"`)})
	if err != nil || config.Cap != "20%" || *config.Sessions != 4 {
		t.Fatalf("%+v %v", config, err)
	}
	var grant node.Grant
	grant.APIs = []string{"cuda", "nvml", "opencl"}
	if err := config.apply(&grant); err != nil || *grant.Cap != 200 || len(grant.APIs) != 2 {
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
			entry(claim, rest)})
		if err == nil || !strings.Contains(err.Error(), expected) {
			t.Errorf("%s: %v", rest, err)
		}
	}
}
