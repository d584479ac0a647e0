package claims

import (
	"encoding/json"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// AnswerTo is what the device's node has answered to a key; nil: nothing yet.
func AnswerTo(claim *resourceapi.ResourceClaim, part Part, key string) *metav1.Condition {
	status := StatusOf(claim, part)
	if status == nil {
		return nil
	}
	ready := meta.FindStatusCondition(status.Conditions, Ready)
	if ready == nil || !strings.HasSuffix(ready.Message, key) {
		return nil
	}
	return ready
}

// IsReady says whether the device's node has granted a claim to a key.
func IsReady(claim *resourceapi.ResourceClaim, plan *Plan, key string) bool {
	for _, part := range plan.Parts {
		if answer := AnswerTo(claim, part, key); answer != nil && answer.Status == metav1.ConditionTrue {
			return true
		}
	}
	return false
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
