package claims

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// Driver is the name by which classes and slices mean this driver.
	Driver = "accel.aviary.dev"
	// ConfigVersion and ConfigKind are those of opaque parameters.
	ConfigVersion = Driver + "/v1alpha1"
	// ConfigKind is the kind of opaque parameters.
	ConfigKind = "AcceleratorConfig"
)

// AcceleratorConfig are the opaque parameters of a class or claim.
type AcceleratorConfig struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// APIs that the claim's programs may use.
	APIs []string `json:"apis,omitempty"`
	// Cap is the largest share of a scheduled device's time, also while it is idle otherwise, such as "30%".
	Cap string `json:"cap,omitempty"`
	// Priority among the device's tenants.
	Priority *int64 `json:"priority,omitempty"`
	// Sessions: the most processes at a time.
	Sessions *int64 `json:"sessions,omitempty"`
	// Threads of a process that make calls.
	Threads *int64 `json:"threads,omitempty"`
	// Functions that may be called.
	Functions *Functions `json:"functions,omitempty"`
	// Limits of further resources of the APIs' specifications.
	Limits map[string]resource.Quantity `json:"limits,omitempty"`
}

// Functions are names of an API's functions.
type Functions struct {
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
}

// FieldError names a field of the opaque parameters that cannot be, and what to do.
type FieldError struct{ Field, Value, Remedy string }

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s.%s: %s: %s", ConfigKind, e.Field, e.Value, e.Remedy)
}

// Decode reads parameters, strictly.
func Decode(raw []byte) (*AcceleratorConfig, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	var config AcceleratorConfig
	if err := decoder.Decode(&config); err != nil {
		return nil, &FieldError{"", string(raw[:min(len(raw), 200)]), "not understood: " + err.Error()}
	}
	if config.APIVersion != ConfigVersion || config.Kind != ConfigKind {
		return nil, &FieldError{"apiVersion", config.APIVersion + " " + config.Kind, "expected " + ConfigVersion + " " + ConfigKind}
	}
	if config.APIs != nil && len(config.APIs) == 0 {
		return nil, &FieldError{"apis", "[]", "expected one or more; leave it out for all that the device has"}
	}
	if config.Cap != "" {
		if _, err := thousandths(config.Cap); err != nil {
			return nil, err
		}
	}
	counts := map[string]*int64{"sessions": config.Sessions, "threads": config.Threads}
	for field, count := range counts {
		if count != nil && *count < 1 {
			return nil, &FieldError{field, strconv.FormatInt(*count, 10), "expected 1 or more"}
		}
	}
	if config.Priority != nil && (*config.Priority > math.MaxInt32 || *config.Priority < math.MinInt32) {
		return nil, &FieldError{"priority", strconv.FormatInt(*config.Priority, 10), "expected 32 bits"}
	}
	for name, limit := range config.Limits {
		if name == "device_memory" {
			return nil, &FieldError{"limits", name, "ask for it as capacity of the request: memory"}
		}
		if limit.Sign() < 0 {
			return nil, &FieldError{"limits." + name, limit.String(), "expected 0 or more"}
		}
	}
	return &config, nil
}

// thousandths of a device's time: what "30%" means.
func thousandths(text string) (int64, error) {
	wrong := &FieldError{"cap", text, "expected a percentage from 0.1% to 100%, such as 30%"}
	digits, ok := strings.CutSuffix(text, "%")
	value, err := strconv.ParseFloat(digits, 64)
	if !ok || err != nil || strings.ContainsAny(digits, "eExXpPnNiI_+-") {
		return 0, wrong
	}
	if value = value * 10; value < 1 || value > 1000 || value != math.Trunc(value) {
		return 0, wrong
	}
	return int64(value), nil
}

// isFor says whether an entry of a claim's configuration is for a request, or for one of the alternatives of it ("request/one").
func isFor(entry *resourceapi.DeviceAllocationConfiguration, request string) bool {
	whole, _, _ := strings.Cut(request, "/")
	return len(entry.Requests) == 0 || slices.Contains(entry.Requests, request) || slices.Contains(entry.Requests, whole)
}

// merged are the parameters of a request: those of its class, then the claim's, of which later ones win. What a class has set a
// claim can only narrow.
func merged(entries []resourceapi.DeviceAllocationConfiguration, request string) (*AcceleratorConfig, error) {
	var class, claim AcceleratorConfig
	for i := range entries {
		entry := &entries[i]
		if entry.Opaque == nil || entry.Opaque.Driver != Driver {
			continue
		}
		config, err := Decode(entry.Opaque.Parameters.Raw)
		switch {
		case err != nil:
			return nil, err
		case !isFor(entry, request):
		case entry.Source == resourceapi.AllocationConfigSourceClass:
			class.take(config)
		default:
			claim.take(config)
		}
	}
	if err := claim.within(&class); err != nil {
		return nil, err
	}
	class.take(&claim)
	return &class, nil
}

// take has what `later` says in the place of what it says itself.
func (c *AcceleratorConfig) take(later *AcceleratorConfig) {
	if later.APIs != nil {
		c.APIs = later.APIs
	}
	if later.Cap != "" {
		c.Cap = later.Cap
	}
	for _, one := range []struct{ own, other **int64 }{
		{&c.Priority, &later.Priority}, {&c.Sessions, &later.Sessions}, {&c.Threads, &later.Threads},
	} {
		if *one.other != nil {
			*one.own = *one.other
		}
	}
	if later.Functions != nil {
		c.Functions = later.Functions
	}
	for name, limit := range later.Limits {
		if c.Limits == nil {
			c.Limits = map[string]resource.Quantity{}
		}
		c.Limits[name] = limit
	}
}

// meet has the least of what two requests of one claim say: they are one tenant. APIs are those of each device.
func (c *AcceleratorConfig) meet(other *AcceleratorConfig) error {
	if c.Cap == "" {
		c.Cap = other.Cap
	} else if other.Cap != "" {
		own, _ := thousandths(c.Cap)
		if its, _ := thousandths(other.Cap); its < own {
			c.Cap = other.Cap
		}
	}
	for _, one := range []struct{ own, other **int64 }{{&c.Sessions, &other.Sessions}, {&c.Threads, &other.Threads}} {
		if *one.own == nil || *one.other != nil && **one.other < **one.own {
			*one.own = *one.other
		}
	}
	if least := min(valueOf(c.Priority), valueOf(other.Priority)); c.Priority != nil || other.Priority != nil {
		c.Priority = &least
	}
	if !reflect.DeepEqual(c.Functions, other.Functions) {
		return &FieldError{"functions", "", "its requests have different ones: make two claims"}
	}
	for name, limit := range other.Limits {
		if own, ok := c.Limits[name]; !ok || limit.Cmp(own) < 0 {
			c.take(&AcceleratorConfig{Limits: map[string]resource.Quantity{name: limit}})
		}
	}
	return nil
}

func valueOf(number *int64) int64 {
	if number == nil {
		return 0
	}
	return *number
}

// within says what of a claim's parameters its class forbids.
func (c *AcceleratorConfig) within(class *AcceleratorConfig) error {
	forbidden := func(field, value, most string) error {
		return &FieldError{field, value, "its class allows " + most + " at the most"}
	}
	for _, api := range c.APIs {
		if class.APIs != nil && !slices.Contains(class.APIs, api) {
			return forbidden("apis", api, strings.Join(class.APIs, ", "))
		}
	}
	if c.Cap != "" && class.Cap != "" {
		own, _ := thousandths(c.Cap)
		if most, _ := thousandths(class.Cap); own > most {
			return forbidden("cap", c.Cap, class.Cap)
		}
	}
	// Without a word of the class nobody is before others.
	usual := valueOf(class.Priority)
	for _, one := range []struct {
		field      string
		own, class *int64
	}{{"priority", c.Priority, &usual}, {"sessions", c.Sessions, class.Sessions}, {"threads", c.Threads, class.Threads}} {
		if one.own != nil && one.class != nil && *one.own > *one.class {
			return forbidden(one.field, strconv.FormatInt(*one.own, 10), strconv.FormatInt(*one.class, 10))
		}
	}
	if c.Functions != nil && class.Functions != nil {
		return &FieldError{"functions", "", "its class says which there are: leave it out"}
	}
	for name, limit := range c.Limits {
		if most, ok := class.Limits[name]; ok && limit.Cmp(most) > 0 {
			return forbidden("limits."+name, limit.String(), most.String())
		}
	}
	return nil
}
