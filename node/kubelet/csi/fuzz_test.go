package csi

import (
	"encoding/json"
	"slices"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

// Whatever a driver says of itself, and whatever is noted in the Node, makes an
// entry and a patch that says the driver's ID beside the others'.
func FuzzDriver(f *testing.F) {
	info, err := proto.Marshal(&csipb.NodeGetInfoResponse{NodeId: "n", MaxVolumesPerNode: -1, AccessibleTopology: &csipb.Topology{Segments: map[string]string{"zone": "a", "": "b"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(`{"other":"x"}`, "hostpath.csi.k8s.io", info)
	f.Add(`null`, "a", []byte{})
	f.Add(`{"a":1}`, "\xff", info[:3])
	f.Fuzz(func(t *testing.T, noted, name string, answer []byte) {
		info := &csipb.NodeGetInfoResponse{}
		if proto.Unmarshal(answer, info) != nil {
			return
		}
		entry := entryOf(name, info)
		if !slices.IsSorted(entry.TopologyKeys) || entry.Allocatable != nil && *entry.Allocatable.Count <= 0 {
			t.Fatalf("%v", entry)
		}
		patch, err := nodePatch(noted, name, info)
		if err != nil {
			t.Fatal(err)
		}
		var node struct {
			Metadata struct{ Annotations, Labels map[string]string }
		}
		ids, before := map[string]string{}, map[string]string{}
		if err := json.Unmarshal(patch, &node); err != nil || len(node.Metadata.Labels) != len(entry.TopologyKeys) {
			t.Fatalf("%v: %s", err, patch)
		}
		if err := json.Unmarshal([]byte(node.Metadata.Annotations[nodeIDAnnotation]), &ids); err != nil {
			t.Fatalf("%v: %s", err, patch)
		}
		if json.Unmarshal([]byte(noted), &before) != nil || before == nil {
			return
		}
		before[name] = info.NodeId
		if len(ids) != len(before) {
			t.Fatalf("%v of %v", ids, before)
		}
	})
}
