meta:
  id: kafka_backup_records
  title: Records file of a Kafka backup segment
  file-extension: records
  license: CC0-1.0
  endian: be
  encoding: UTF-8
doc: |
  `segment_partition_<p>_from_offset_<o>_records`: records back to back after one magic byte.
  What the types below can't say: offsets strictly increase.
seq:
  - id: magic
    contents: [0x01]
  - id: records
    type: record
    repeat: eos
types:
  record:
    seq:
      - id: offset
        type: s8
        doc: Offset in the source partition.
        valid:
          min: 0
      - id: timestamp_type
        type: s4
        doc: -1 none, 0 CreateTime, 1 LogAppendTime, -2 CreateTime whose timestamp is null.
        valid:
          min: -2
          max: 1
      - id: timestamp
        type: s8
        doc: Milliseconds since the epoch.
        if: timestamp_type >= 0
      - id: key
        type: nullable
      - id: value
        type: nullable
      - id: header_count
        type: s4
        doc: Number of headers, not of bytes.
        valid:
          min: 0
      - id: headers
        type: header
        repeat: expr
        repeat-expr: header_count
  header:
    doc: Order and duplicates are kept.
    seq:
      - id: len_key
        type: s4
        valid:
          min: 0
      - id: key
        size: len_key
      - id: value
        type: nullable
  nullable:
    doc: Length -1 is null; length 0 is empty.
    seq:
      - id: len_octets
        type: s4
        valid:
          min: -1
      - id: octets
        size: len_octets
        if: len_octets >= 0
