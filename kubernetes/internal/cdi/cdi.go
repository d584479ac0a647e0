// Package cdi writes the file of a claim that tells the container runtime what to mount: libraries and one socket. There is no
// device, no vendor's driver and no credential in it.
package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"aviary.dev/kubernetes/internal/store"
)

const (
	// Kind of the devices; each is called by its claim's UID.
	Kind = "accel.aviary.dev/claim"
	// The version that containerd 1.7 reads.
	version = "0.8.0"
	prefix  = "aviary-"
	// InContainer is where libraries lie.
	InContainer = "/opt/aviary"
	// socketFolder is where the socket lies.
	socketFolder = "/run/aviary"
)

// usual are the folders in which the dynamic linkers of Debian's and Red Hat's families look without being told. A library that is
// mounted there is found although LD_LIBRARY_PATH is the image's own.
var usual = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib64"}

// Files are those of one node.
type Files struct {
	// Folder of the CDI files.
	Folder string
	// Libraries has a folder for each API, with api.json and the library in it.
	Libraries string
}

// ID is the name by which the kubelet asks the runtime for a claim.
func ID(uid string) string { return Kind + "=" + uid }

func (f Files) path(uid string) string { return filepath.Join(f.Folder, prefix+uid+".json") }

var readOnly = []string{"ro", "rbind", "nosuid", "nodev"}

// Write makes the file of a claim whose guests come by the socket in `folder`. `apis`: those whose libraries take the place of the
// vendors'.
func (f Files) Write(uid, folder string, apis []string) error {
	edits := specs.ContainerEdits{
		Env: []string{"AVIARY_SERVER=unix:" + socketFolder + "/node.sock"},
		Mounts: []*specs.Mount{
			{HostPath: folder, ContainerPath: socketFolder, Options: readOnly},
			{HostPath: f.Libraries, ContainerPath: InContainer, Options: readOnly},
		},
	}
	for _, api := range apis {
		library, err := f.library(api)
		if err != nil {
			return err
		}
		for _, folder := range usual {
			edits.Mounts = append(edits.Mounts, &specs.Mount{
				HostPath: filepath.Join(f.Libraries, api, library), ContainerPath: path.Join(folder, library), Options: readOnly,
			})
		}
	}
	spec := specs.Spec{Version: version, Kind: Kind, Devices: []specs.Device{{Name: uid, ContainerEdits: edits}}}
	data, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	// Not flushed: the folder is in memory, as a rule, and kubelets that start prepare claims again.
	return store.ReplaceFile(f.path(uid), data, 0o644)
}

// library is the name of an API's library.
func (f Files) library(api string) (string, error) {
	data, err := os.ReadFile(filepath.Join(f.Libraries, api, "api.json"))
	if err != nil {
		return "", fmt.Errorf("this node has no library of %s for containers (install aviary-guest): %w", api, err)
	}
	var description struct {
		Library string `json:"library"`
	}
	if err := json.Unmarshal(data, &description); err != nil || description.Library == "" ||
		strings.Contains(description.Library, "/") {
		return "", fmt.Errorf("%s/%s/api.json names no library", f.Libraries, api)
	}
	return description.Library, nil
}

// Has says whether there is a library of an API.
func (f Files) Has(api string) bool {
	_, err := f.library(api)
	return err == nil
}

// Remove takes the file of a claim away; one that is not there is no error.
func (f Files) Remove(uid string) error {
	if err := os.Remove(f.path(uid)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// UIDs of the claims of which there is a file.
func (f Files) UIDs() ([]string, error) {
	found, err := os.ReadDir(f.Folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var uids []string
	for _, one := range found {
		if name, ok := strings.CutPrefix(one.Name(), prefix); ok {
			uid, _ := strings.CutSuffix(strings.TrimSuffix(name, ".new"), ".json")
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), err
}
