// Package storageversion is what API servers and controllers have in common about
// StorageVersions: whose entries count, and what follows from the entries of all. It
// reads and writes nothing.
package storageversion

import (
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// IdentityLabel marks the Leases of API servers, with IdentityValue. Each is in the
	// namespace kube-system, and has the server's name.
	IdentityLabel, IdentityValue = "apiserver.kubernetes.io/identity", "kube-apiserver"
)

// IsIdentity says that a Lease is an API server's.
func IsIdentity(l *coordinationv1.Lease) bool {
	return l.Namespace == metav1.NamespaceSystem && l.Labels[IdentityLabel] == IdentityValue
}

// Record makes the entry that of its API server, and says what follows.
func Record(v *apiserverinternalv1alpha1.StorageVersion, entry apiserverinternalv1alpha1.ServerStorageVersion) {
	known := false
	for i, e := range v.Status.StorageVersions {
		if e.APIServerID == entry.APIServerID {
			v.Status.StorageVersions[i], known = entry, true
			break
		}
	}
	if !known {
		v.Status.StorageVersions = append(v.Status.StorageVersions, entry)
	}
	Conclude(v)
}

// Conclude says of the entries whether all API servers store the resource in the same
// version, and in which.
func Conclude(v *apiserverinternalv1alpha1.StorageVersion) {
	before, common := v.Status.CommonEncodingVersion, commonVersion(v.Status.StorageVersions)
	v.Status.CommonEncodingVersion = common
	now := apiserverinternalv1alpha1.StorageVersionCondition{
		Type: apiserverinternalv1alpha1.AllEncodingVersionsEqual, Status: apiserverinternalv1alpha1.ConditionFalse,
		ObservedGeneration: v.Generation, LastTransitionTime: metav1.NewTime(time.Now()),
		Reason: "CommonEncodingVersionUnset", Message: "Common encoding version unset",
	}
	if common != nil {
		now.Status, now.Reason, now.Message = apiserverinternalv1alpha1.ConditionTrue, "CommonEncodingVersionSet", "Common encoding version set"
	}
	for i, c := range v.Status.Conditions {
		if c.Type != now.Type {
			continue
		}
		// Another common version is a transition too.
		if c.Status == now.Status && (before == nil || common == nil || *before == *common) {
			now.LastTransitionTime = c.LastTransitionTime
		}
		v.Status.Conditions[i] = now
		return
	}
	v.Status.Conditions = append(v.Status.Conditions, now)
}

func commonVersion(entries []apiserverinternalv1alpha1.ServerStorageVersion) *string {
	for _, e := range entries {
		if e.EncodingVersion != entries[0].EncodingVersion {
			return nil
		}
	}
	if len(entries) == 0 {
		return nil
	}
	return new(entries[0].EncodingVersion)
}
