package endpoints

import (
	"encoding/json"
	"fmt"

	kjson "sigs.k8s.io/json"

	"knarr/controlplane/apiserver/registry"
)

// A message has a protobuf form.
type message interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// asStored is obj as it would come back from the store, which does not tell
// what is empty from what is absent.
func (e *entry) asStored(obj registry.Object) (registry.Object, error) {
	s := e.res.Storage()
	m, ok := obj.(message)
	switch {
	case e.custom != nil:
		return obj, nil
	case s.Text != nil:
		text, err := s.Text.Encode(obj)
		if err != nil {
			return nil, err
		}
		data, err := json.Marshal(text)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", e.gvk.Kind, err)
		}
		out, err := s.Text.Decode(data)
		if err == nil {
			dropKind(out, e.gvk)
		}
		return out, err
	case s.JSON || !ok:
		data, err := json.Marshal(obj)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", e.gvk.Kind, err)
		}
		out := e.res.New()
		return out, kjson.UnmarshalCaseSensitivePreserveInts(data, out)
	}
	data, err := m.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", e.gvk.Kind, err)
	}
	out := e.res.New()
	return out, out.(message).Unmarshal(data)
}
