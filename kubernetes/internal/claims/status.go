package claims

import (
	"encoding/json"

	resourceapi "k8s.io/api/resource/v1"
)

// Access is what the node of a pod writes into the claim's status for the node of the device: the key that it will show.
type Access struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Key is the SHA-256 of a certificate.
	Key string `json:"key"`
}

// AccessKind is the kind of Access.
const AccessKind = "ClaimAccess"

// Ready is the condition with which the device's node answers. Its message ends with the key that is meant.
const Ready = "Ready"

// NewAccess is what is written.
func NewAccess(key string) Access { return Access{ConfigVersion, AccessKind, key} }

// StatusOf is the entry of one allocation in the claim's status; nil: there is none.
func StatusOf(claim *resourceapi.ResourceClaim, part Part) *resourceapi.AllocatedDeviceStatus {
	for i := range claim.Status.Devices {
		status := &claim.Status.Devices[i]
		share := part.ShareID == nil && status.ShareID == nil ||
			part.ShareID != nil && status.ShareID != nil && string(*part.ShareID) == *status.ShareID
		if status.Driver == Driver && status.Pool == part.Pool && status.Device == part.Device && share {
			return status
		}
	}
	return nil
}

// KeyOf is the key that the pod's node has written for a claim; empty: none.
func KeyOf(claim *resourceapi.ResourceClaim, plan *Plan) string {
	for _, part := range plan.Parts {
		status := StatusOf(claim, part)
		if status == nil || status.Data == nil {
			continue
		}
		var access Access
		if json.Unmarshal(status.Data.Raw, &access) == nil && access.APIVersion == ConfigVersion && access.Kind == AccessKind {
			return access.Key
		}
	}
	return ""
}
