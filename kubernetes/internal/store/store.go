// Package store keeps what the plugin has begun for a claim: a file for each, with a checksum, flushed before the step that it
// names. So a plugin that is killed at any line knows at its next start what may be there.
package store

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Version of the files.
const Version = 1

// State says how far a claim is.
type State string

const (
	// Preparing: a grant and a CDI file may be there.
	Preparing State = "preparing"
	// Prepared: both are there.
	Prepared State = "prepared"
	// Leaving: they are being taken back.
	Leaving State = "leaving"
)

// Entry is what is known of a claim.
type Entry struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	State     State  `json:"state"`
	// Pool is that of a device of another node; empty: the devices are this node's.
	Pool string `json:"pool,omitempty"`
}

type file struct {
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"`
	Entry    json.RawMessage `json:"entry"`
}

// Store is a folder of entries.
type Store struct{ folder string }

// ErrDamaged says that a file is there and cannot be read: its claim is known by the file's name only.
var ErrDamaged = errors.New("the checkpoint is damaged")

// Open makes the folder where it is missing.
func Open(folder string) (*Store, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	return &Store{folder}, nil
}

func (s *Store) path(uid string) string { return filepath.Join(s.folder, uid+".json") }

func sum(data []byte) string {
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:])
}

// Put writes an entry, flushed to the disk.
func (s *Store) Put(entry Entry) error {
	if entry.UID == "" || strings.ContainsAny(entry.UID, "/.") {
		return fmt.Errorf("%q is no UID", entry.UID)
	}
	data, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	whole, err := json.Marshal(file{Version, sum(data), data})
	if err != nil {
		return err
	}
	return WriteFile(s.path(entry.UID), whole, 0o600)
}

// Get reads an entry; nil: there is none.
func (s *Store) Get(uid string) (*Entry, error) {
	data, err := os.ReadFile(s.path(uid))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var whole file
	var entry Entry
	if json.Unmarshal(data, &whole) != nil || whole.Version != Version || whole.Checksum != sum(whole.Entry) ||
		json.Unmarshal(whole.Entry, &entry) != nil || entry.UID != uid {
		return nil, fmt.Errorf("%w: %s", ErrDamaged, s.path(uid))
	}
	return &entry, nil
}

// Delete removes an entry; one that is not there is no error.
func (s *Store) Delete(uid string) error {
	if err := os.Remove(s.path(uid)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return flush(s.folder)
}

// UIDs of all claims of which there is a file.
func (s *Store) UIDs() ([]string, error) {
	found, err := os.ReadDir(s.folder)
	if err != nil {
		return nil, err
	}
	var uids []string
	for _, one := range found {
		if uid, ok := strings.CutSuffix(one.Name(), ".json"); ok {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}

// WriteFile writes a whole file or nothing, and flushes it to the disk.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	if err := replace(path, data, mode, (*os.File).Sync); err != nil {
		return err
	}
	return flush(filepath.Dir(path))
}

// ReplaceFile writes a whole file or nothing, as others see it now: a machine that loses power may lose it.
func ReplaceFile(path string, data []byte, mode os.FileMode) error {
	return replace(path, data, mode, func(*os.File) error { return nil })
}

func replace(path string, data []byte, mode os.FileMode, sync func(*os.File) error) error {
	next := path + ".new"
	out, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	if err = errors.Join(err, sync(out), out.Close()); err != nil {
		return err
	}
	return os.Rename(next, path)
}

func flush(folder string) error {
	open, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(open.Sync(), open.Close())
}
