"""One order in Avro, Protobuf and JSON, with its schemas."""

from __future__ import annotations

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "money.proto";
message Cart { string owner = 1; message Line { string what = 1; } }
message Order {
  int64 id = 1; google.protobuf.Timestamp placed_at = 2; Money price = 3; bytes blob = 4;
  repeated uint64 parts = 5; State state = 6; optional string note = 7;
  enum State { NEW = 0; PAID = 1; }
}
"""

MONEY = 'syntax = "proto3"; package shop; message Money { string currency = 1; double amount = 2; }'
