package driver

import (
	"strings"
	"testing"
	"unicode/utf8"

	"aviary.dev/kubernetes/internal/node"
)

// What the API server does not take as an attribute keeps no device from being published.
func TestAttributesOfOddNames(t *testing.T) {
	w := newWorld(t)
	driver := w.driver("n1", nil)
	long := strings.Repeat("x", attributeSize-1)
	for name, expected := range map[string]string{
		long + "®": long, long[:62] + "®": long[:62] + "®", strings.Repeat("加", 30): strings.Repeat("加", 21), "\x80\x80": "",
		strings.Repeat("\x80", 2*attributeSize): "", "Intel® UHD": "Intel® UHD",
	} {
		if got := *text(name).StringValue; got != expected || !utf8.ValidString(got) || len(got) > attributeSize {
			t.Errorf("%q: %q", name, got)
		}
	}
	var list []node.Device
	for _, api := range []string{"opencl", "my-api", "kind", "tlsPin", "9p", strings.Repeat("a", 33)} {
		list = append(list, node.Device{API: api, Name: "加速卡 ®", Healthy: true})
	}
	devices := driver.pool(accelerators(list), nil).Pools["n1"].Slices[0].Devices
	if len(devices) != 2 {
		t.Fatalf("%+v", devices)
	}
	attributes := devices[1].Attributes
	if kind := attributes["kind"].StringValue; kind == nil || *kind != "accelerator" {
		t.Fatalf("%+v", attributes)
	}
	var apis []string
	for name, value := range attributes {
		if value.BoolValue != nil {
			apis = append(apis, string(name))
		}
	}
	if strings.Join(apis, " ") != "opencl" {
		t.Fatal(apis)
	}
	// Of its own pods it has all.
	if its, err := (&Driver{devices: accelerators(list)}).describe(devices[1].Name); err != nil || len(its.APIs) != len(list) {
		t.Fatalf("%v %v", its, err)
	}
}
