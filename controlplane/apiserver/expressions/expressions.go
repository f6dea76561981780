// Package expressions are the CEL expressions of admission: what each may
// return, how it is compiled, and match conditions. It reads and writes nothing
// but what it is given.
package expressions

import (
	"github.com/google/cel-go/cel"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// A Condition is true or false: a match condition, named, or a validation with
// what to say when it is false.
type Condition struct {
	Expression string
	Name       string
	Message    string
	Reason     *metav1.StatusReason
}

func (c *Condition) GetExpression() string    { return c.Expression }
func (c *Condition) ReturnTypes() []*cel.Type { return []*cel.Type{cel.BoolType} }

// A Message makes the text of a refusal.
type Message struct{ Expression string }

func (m *Message) GetExpression() string    { return m.Expression }
func (m *Message) ReturnTypes() []*cel.Type { return []*cel.Type{cel.StringType} }

// An Annotation makes the value of an audit annotation, or null for none.
type Annotation struct{ Key, Expression string }

func (a *Annotation) GetExpression() string    { return a.Expression }
func (a *Annotation) ReturnTypes() []*cel.Type { return []*cel.Type{cel.StringType, cel.NullType} }

// A Variable can be used by the expressions that follow it.
type Variable struct{ Name, Expression string }

func (v *Variable) GetName() string          { return v.Name }
func (v *Variable) GetExpression() string    { return v.Expression }
func (v *Variable) ReturnTypes() []*cel.Type { return []*cel.Type{cel.AnyType, cel.DynType} }

// environmentSet is made when the first expression needs it: it costs
// milliseconds and megabytes that a cluster without expressions keeps.
func environmentSet() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
}

// NewCompiler compiles expressions that know each other's variables.
func NewCompiler() (*plugincel.CompositedCompiler, error) {
	return plugincel.NewCompositedCompiler(environmentSet())
}

// NewPlainCompiler compiles expressions that have no variables.
func NewPlainCompiler() plugincel.Compiler { return plugincel.NewCompiler(environmentSet()) }
