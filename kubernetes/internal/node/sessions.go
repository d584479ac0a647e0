package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const (
	// stopMS is how long a session is held up for an attempt to park it, in milliseconds.
	stopMS = 4000
	// parkPatience is how long it is tried again while what is in the way may pass.
	parkPatience = 10 * time.Second
	parkPause    = 500 * time.Millisecond
)

// Session is one of a program, as `aviary ps` lists it.
type Session struct {
	Number uint64
	Tenant string
	// Parked: nothing of it is on a device.
	Parked bool
}

// Sessions implements Node.
func (d Daemon) Sessions(ctx context.Context) ([]Session, error) {
	var report struct {
		Sessions []struct {
			Session uint64          `json:"session"`
			Tenant  string          `json:"tenant"`
			Parked  json.RawMessage `json:"parked"`
		} `json:"sessions"`
	}
	if err := d.ask(ctx, "ps", &report); err != nil {
		return nil, err
	}
	var sessions []Session
	for _, one := range report.Sessions {
		sessions = append(sessions, Session{one.Session, one.Tenant, len(one.Parked) > 0})
	}
	return sessions, nil
}

// errPasses says that a session could not be parked just now.
var errPasses = errors.New("not now")

// Park implements Node.
func (d Daemon) Park(ctx context.Context, session uint64) error {
	for deadline := time.Now().Add(parkPatience); ; {
		err := d.tryToPark(ctx, session)
		if !errors.Is(err, errPasses) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(parkPause):
		}
	}
}

func (d Daemon) tryToPark(ctx context.Context, session uint64) error {
	var begun struct {
		Number uint64 `json:"number"`
	}
	wish := map[string]any{"migrate": map[string]any{"session": session, "check": false, "park": true, "stop_ms": stopMS}}
	if err := d.ask(ctx, wish, &begun); err != nil {
		return err
	}
	for {
		var status map[string]json.RawMessage
		if err := d.ask(ctx, map[string]uint64{"movestatus": begun.Number}, &status); err != nil {
			return err
		}
		if _, parked := status["parked"]; parked {
			return nil
		}
		var refused struct {
			Reason  string `json:"reason"`
			Lasting bool   `json:"lasting"`
		}
		if said, ok := status["refused"]; ok {
			if err := json.Unmarshal(said, &refused); err != nil {
				return fmt.Errorf("the node daemon's answer is not understood: %w", err)
			}
			if refused.Lasting {
				return &Refusal{refused.Reason}
			}
			return fmt.Errorf("%w: %s", errPasses, refused.Reason)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}
