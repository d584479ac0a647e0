// Package node asks the node daemon of this machine, at its admin socket: one line of JSON, one answer (docs/grants.md).
package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Node is what the driver needs of a node daemon; tests have others.
type Node interface {
	// Devices lists the machine's accelerators; ErrUnknown: the daemon has not listed them yet.
	Devices(ctx context.Context) ([]Device, error)
	Grants(ctx context.Context) ([]GrantReport, error)
	// Grant makes a grant or changes it; asked again it changes nothing.
	Grant(ctx context.Context, grant Grant) (GrantReport, error)
	// Revoke takes a grant back and returns when nothing of it is left.
	Revoke(ctx context.Context, name string) error
	Sessions(ctx context.Context) ([]Session, error)
	// Park takes a session, with the others of its program, off its devices until the program's next call. An error: it stays there.
	Park(ctx context.Context, session uint64) error
}

// ErrUnknown says that a question has no answer yet: ask again.
var ErrUnknown = errors.New("the node daemon has not listed its devices yet")

// ErrAway says that no daemon answers: it is being restarted, for instance.
var ErrAway = errors.New("the node daemon of this machine does not answer")

// Device is one line of `aviary devices --json`.
type Device struct {
	API     string  `json:"api"`
	Name    string  `json:"name"`
	UUID    *string `json:"uuid"`
	Memory  *int64  `json:"memory"`
	Driver  *string `json:"driver"`
	Library *string `json:"library"`
	PCI     *string `json:"pci"`
	NUMA    *int64  `json:"numa"`
	Healthy bool    `json:"healthy"`
	Reason  *string `json:"reason"`
}

// Entrance is how a grant's guests are known: one of both.
type Entrance struct {
	Socket string `json:"socket,omitempty"`
	Key    string `json:"key,omitempty"`
}

// DeviceLimit is a limit on the devices of one name; nil: none.
type DeviceLimit struct {
	Device   string  `json:"device"`
	Resource string  `json:"resource"`
	Limit    *uint64 `json:"limit"`
}

// Via is a node to which guests are carried; the daemon answers with the key that it shows there.
type Via struct {
	Node string `json:"node"`
	Pin  string `json:"pin"`
	Key  string `json:"key,omitempty"`
}

// LeadsTo says whether both are the same way, or none.
func (v *Via) LeadsTo(other *Via) bool {
	return v == nil && other == nil || v != nil && other != nil && v.Node == other.Node && v.Pin == other.Pin
}

// Functions are those of an API that guests may call.
type Functions struct {
	// Allow: nil: all but those of Deny.
	Allow []string `json:"allow,omitzero"`
	Deny  []string `json:"deny,omitempty"`
}

// Grant is a tenant of the node.
type Grant struct {
	Name         string            `json:"name"`
	Entrance     Entrance          `json:"entrance"`
	Limits       map[string]uint64 `json:"limits,omitempty"`
	DeviceLimits []DeviceLimit     `json:"device_limits,omitempty"`
	Sessions     *int64            `json:"sessions,omitempty"`
	Threads      *int64            `json:"threads,omitempty"`
	Share        *int64            `json:"share,omitempty"`
	Priority     int64             `json:"priority,omitempty"`
	Cap          *int64            `json:"cap,omitempty"`
	APIs         []string          `json:"apis,omitempty"`
	Functions    *Functions        `json:"functions,omitempty"`
	OnlyDevices  []string          `json:"only_devices,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Via          *Via              `json:"via,omitempty"`
}

// GrantReport is a grant and how much it is used.
type GrantReport struct {
	Grant
	Sessions int64 `json:"sessions"`
}

// Daemon is the node that listens on a socket.
type Daemon struct {
	// Socket is the node's; that of the admin lies beside it.
	Socket string
}

const (
	// A slow disk is waited for.
	patience = 60 * time.Second
	poll     = 20 * time.Millisecond
	maximum  = 64 << 20
)

// ask sends one request; the answer is decoded into `answer`.
func (d Daemon) ask(ctx context.Context, request, answer any) error {
	base := strings.TrimSuffix(d.Socket, filepath.Ext(d.Socket))
	connection, err := (&net.Dialer{}).DialContext(ctx, "unix", base+".admin")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	defer connection.Close()
	deadline := time.Now().Add(patience)
	if told, ok := ctx.Deadline(); ok && told.Before(deadline) {
		deadline = told
	}
	if err := connection.SetDeadline(deadline); err != nil {
		return err
	}
	var line bytes.Buffer
	// A daemon whose API servers are its own user asks for its secret first.
	if secret, err := os.ReadFile(base + ".secret"); err == nil {
		fmt.Fprintf(&line, "secret %s\n", secret)
	}
	if err := json.NewEncoder(&line).Encode(request); err != nil {
		return err
	}
	if _, err := connection.Write(line.Bytes()); err != nil {
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	said, err := io.ReadAll(io.LimitReader(connection, maximum))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	var refusal struct {
		Error *string `json:"error"`
	}
	if json.Unmarshal(said, &refusal) == nil && refusal.Error != nil {
		return &Refusal{*refusal.Error}
	}
	if err := json.Unmarshal(said, answer); err != nil {
		return fmt.Errorf("the node daemon's answer is not understood: %w", err)
	}
	return nil
}

// Refusal is what the daemon says that it does not do.
type Refusal struct{ Reason string }

func (r *Refusal) Error() string { return r.Reason }

// Devices implements Node.
func (d Daemon) Devices(ctx context.Context) ([]Device, error) {
	var listed struct {
		Devices *[]Device `json:"devices"`
		Reason  *string   `json:"reason"`
	}
	if err := d.ask(ctx, "devices", &listed); err != nil {
		return nil, err
	}
	switch {
	case listed.Reason != nil:
		return nil, fmt.Errorf("the node daemon cannot list its devices: %s", *listed.Reason)
	case listed.Devices == nil:
		return nil, ErrUnknown
	}
	return *listed.Devices, nil
}

// Grants implements Node.
func (d Daemon) Grants(ctx context.Context) ([]GrantReport, error) {
	var grants []GrantReport
	err := d.ask(ctx, "grants", &grants)
	return grants, err
}

// Grant implements Node.
func (d Daemon) Grant(ctx context.Context, grant Grant) (GrantReport, error) {
	request := map[string]any{"grant": map[string]any{"grant": grant, "lifetime": nil, "overcommit": false}}
	var report GrantReport
	err := d.ask(ctx, request, &report)
	return report, err
}

// Revoke implements Node.
func (d Daemon) Revoke(ctx context.Context, name string) error {
	for {
		var report struct {
			Done bool `json:"done"`
		}
		if err := d.ask(ctx, map[string]string{"revoke": name}, &report); err != nil {
			return err
		}
		if report.Done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("grant %s is revoked, but not all of it has ended: %w", name, ctx.Err())
		case <-time.After(poll):
		}
	}
}
