package authz

import (
	_ "embed"
	"encoding/json"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/registry"
	"knarr/internal/features"
)

// upstreamJSON are the RBAC objects upstream v1.36 makes at start, recorded
// from its API server.
//
//go:embed bootstrap/rbac.json
var upstreamJSON []byte

// knarrJSON are those of knarr's own parts.
//
//go:embed bootstrap/knarr.json
var knarrJSON []byte

// Bootstrap are the RBAC objects every cluster starts with in which these features are
// on.
func Bootstrap(on features.Set) ([]registry.Object, error) {
	var raw []json.RawMessage
	for _, file := range [][]byte{upstreamJSON, knarrJSON} {
		var part []json.RawMessage
		if err := json.Unmarshal(file, &part); err != nil {
			return nil, fmt.Errorf("bootstrap RBAC objects: %w", err)
		}
		raw = append(raw, part...)
	}
	objects := make([]registry.Object, 0, len(raw))
	for _, b := range raw {
		var kind metav1.TypeMeta
		if err := json.Unmarshal(b, &kind); err != nil {
			return nil, fmt.Errorf("bootstrap RBAC objects: %w", err)
		}
		var o registry.Object
		switch kind.Kind {
		case "ClusterRole":
			o = &rbacv1.ClusterRole{}
		case "ClusterRoleBinding":
			o = &rbacv1.ClusterRoleBinding{}
		case "Role":
			o = &rbacv1.Role{}
		case "RoleBinding":
			o = &rbacv1.RoleBinding{}
		default:
			return nil, fmt.Errorf("bootstrap RBAC objects: unexpected kind %q", kind.Kind)
		}
		if err := json.Unmarshal(b, o); err != nil {
			return nil, fmt.Errorf("bootstrap RBAC %s: %w", kind.Kind, err)
		}
		objects = append(objects, o)
	}
	return withFeatures(objects, on), nil
}
