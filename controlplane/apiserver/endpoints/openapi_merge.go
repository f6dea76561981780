package endpoints

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"

	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"knarr/controlplane/apiserver/endpoints/openapi"
)

// RemoteSchemas are what the OpenAPI v2 of another server says of the group
// version that is served there. Tag names them; nobody may change them.
type RemoteSchemas struct {
	Schemas *spec.Swagger
	Tag     string
}

// v2 is the hash of the OpenAPI v2 of everything, and how it is made.
func (o *openAPI) v2(remote *Remote) (hash string, build func() ([]byte, error)) {
	own := func() ([]byte, error) { return openapi.V2(o.all) }
	hash = o.hash
	elsewhere := remote != nil && len(remote.Schemas) > 0
	if elsewhere {
		h := sha512.New()
		io.WriteString(h, o.hash)
		for _, r := range remote.Schemas {
			fmt.Fprintf(h, "\n%q", r.Tag)
		}
		hash = fmt.Sprintf("%X", h.Sum(nil))
	}
	o.mu.Lock()
	if o.made != hash { // what was served before is not asked for again
		o.made = hash
		delete(o.docs, "v2 false")
		delete(o.docs, "v2 true")
	}
	o.mu.Unlock()
	if !elsewhere {
		return hash, own
	}
	return hash, func() ([]byte, error) {
		data, err := own()
		if err != nil {
			return nil, err
		}
		all := &spec.Swagger{}
		if err := all.UnmarshalJSON(data); err != nil {
			return nil, err
		}
		for _, r := range remote.Schemas {
			if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(all, r.Schemas); err != nil {
				return nil, fmt.Errorf("failed to build merge specs: %w", err)
			}
		}
		return json.Marshal(all)
	}
}
