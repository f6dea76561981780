package tracing

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxText bounds each text of a span.
const maxText = 1024

// encoded hands messages on that are encoded already.
type encoded struct{}

// Marshal gives the bytes themselves.
func (encoded) Marshal(v any) ([]byte, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("encode %T", v)
	}
	return b, nil
}

// Unmarshal takes the bytes as they are.
func (encoded) Unmarshal(b []byte, v any) error {
	p, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("decode into %T", v)
	}
	*p = append((*p)[:0], b...)
	return nil
}

// Name is that of the encoding that the bytes have.
func (encoded) Name() string { return "proto" }

func appendText(b []byte, field protowire.Number, s string) []byte {
	if len(s) > maxText {
		s = s[:maxText]
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendString(b, strings.ToValidUTF8(s, "\uFFFD"))
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendTime(b []byte, field protowire.Number, v int64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), uint64(v))
}

// attribute is OTLP's KeyValue.
func attribute(a Attribute) []byte {
	var value []byte
	if a.Text != "" {
		value = appendText(nil, 1, a.Text)
	} else {
		value = appendNumber(nil, 3, uint64(a.Number))
	}
	return appendBytes(appendText(nil, 1, a.Key), 2, value)
}

// encode is OTLP's Span.
func (s *Span) encode() []byte {
	b := appendBytes(nil, 1, s.at.trace[:])
	b = appendBytes(b, 2, s.at.id[:])
	if s.parent != [8]byte{} {
		b = appendBytes(b, 4, s.parent[:])
	}
	b = appendText(b, 5, s.name)
	b = appendNumber(b, 6, uint64(s.kind))
	b = appendTime(b, 7, s.start.UnixNano())
	b = appendTime(b, 8, s.end.UnixNano())
	for _, a := range s.attributes {
		b = appendBytes(b, 9, attribute(a))
	}
	if s.failed {
		b = appendBytes(b, 15, appendNumber(appendText(nil, 2, s.failure), 3, 2))
	}
	return protowire.AppendFixed32(protowire.AppendTag(b, 16, protowire.Fixed32Type), 1) // sampled
}

// request is OTLP's ExportTraceServiceRequest of spans of a kubelet on a node.
func request(host string, batch []*Span) []byte {
	resource := appendBytes(nil, 1, attribute(Text("service.name", "kubelet")))
	resource = appendBytes(resource, 1, attribute(Text("host.name", host)))
	b := appendBytes(nil, 1, resource)
	for _, scope := range []string{OfKubelet, OfCalls} {
		of := appendBytes(nil, 1, appendText(nil, 1, scope))
		some := false
		for _, s := range batch {
			if s.scope == scope {
				of, some = appendBytes(of, 2, s.encode()), true
			}
		}
		if some {
			b = appendBytes(b, 2, of)
		}
	}
	return appendBytes(nil, 1, b)
}
