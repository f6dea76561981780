// Package structured reads and judges the files AuthenticationConfiguration and
// AuthorizationConfiguration, in upstream's words. It writes nothing.
package structured

import (
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
)

// decoder takes all versions, and no unknown field.
var decoder = sync.OnceValue(func() runtime.Decoder {
	s := runtime.NewScheme()
	install.Install(s)
	return serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDecoder()
})

func decode[T runtime.Object](data []byte, kind string) (config T, err error) {
	obj, err := runtime.Decode(decoder(), data)
	if err != nil {
		return config, err
	}
	config, ok := obj.(T)
	if !ok {
		return config, fmt.Errorf("expected %s, got %T", kind, obj)
	}
	return config, nil
}

func authentication(data []byte) (*apiserver.AuthenticationConfiguration, error) {
	if len(data) == 0 {
		return nil, errors.New("empty config data")
	}
	return decode[*apiserver.AuthenticationConfiguration](data, "AuthenticationConfiguration")
}

func authorization(data []byte) (*apiserver.AuthorizationConfiguration, error) {
	if len(data) == 0 { // what says nothing names no authoriser
		return &apiserver.AuthorizationConfiguration{}, nil
	}
	return decode[*apiserver.AuthorizationConfiguration](data, "AuthorizationConfiguration")
}
