package containerruntime

import (
	"slices"
	"testing"

	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestStray(t *testing.T) {
	extension := func(text string) map[string]typeurl.Any {
		return map[string]typeurl.Any{"metadata": &anypb.Any{Value: []byte(text)}}
	}
	known := []map[string]typeurl.Any{
		nil,
		extension(`{"Version":"v1","Metadata":{"NetNSPath":"/run/k/netns/cni-1"}}`),
		extension(`{"Version":"v1","Metadata":{"NetNSPath":"/run/k/netns/cni-22"}}`),
		extension(`{"Version":"v1","Metadata":{"NetNSPath":""}}`),
	}
	files := []string{"/run/k/netns/cni-1", "/run/k/netns/cni-2", "/run/k/netns/cni-22", "/run/k/netns/cni-3"}
	if got, want := stray(files, known), []string{"/run/k/netns/cni-2", "/run/k/netns/cni-3"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
