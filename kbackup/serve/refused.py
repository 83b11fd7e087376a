"""Refuse requests as a whole: what writes, and whatever else is not to be answered."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from kbackup.kafka.control.messages import admin, producer
from kbackup.serve.protocol import READ_ONLY, Api, ClientRequest, ErrorCode, RequestRefusedError, fields_in_version

_ALIASES: Mapping[str, tuple[str, ...]] = {"user": ("name",), "topic": ("name",), "index": ("partition_index",)}
"""Fields of responses that requests have under another name."""


_PRODUCER_IDS = count(1)
"""Ids for producers. Nothing is kept of them, so they begin anew with each process."""


def refused_apis() -> list[Api]:
    """Return the requests that write, or prepare to write. They are known, and refused: a client shows why, where it
    would call the server too old for a request that is not known."""
    return [
        Api(producer.ProduceRequest, producer.ProduceResponse, 3, 13, _refuse_records),
        Api(producer.InitProducerIdRequest, producer.InitProducerIdResponse, 0, 5, _give_id),
        Api(producer.AddPartitionsToTxnRequest, producer.AddPartitionsToTxnResponse, 0, 3, _refuse_producer),
        Api(producer.AddOffsetsToTxnRequest, producer.AddOffsetsToTxnResponse, 0, 4, _refuse_producer),
        Api(producer.EndTxnRequest, producer.EndTxnResponse, 0, 4, _refuse_producer),
        Api(producer.TxnOffsetCommitRequest, producer.TxnOffsetCommitResponse, 0, 4, _refuse_producer),
        Api(admin.CreateTopicsRequest, admin.CreateTopicsResponse, 2, 7, _refuse),
        Api(admin.DeleteTopicsRequest, admin.DeleteTopicsResponse, 1, 6, _refuse),
        Api(admin.CreatePartitionsRequest, admin.CreatePartitionsResponse, 0, 3, _refuse),
        Api(admin.DeleteRecordsRequest, admin.DeleteRecordsResponse, 0, 2, _refuse),
        Api(admin.AlterConfigsRequest, admin.AlterConfigsResponse, 0, 2, _refuse),
        Api(admin.IncrementalAlterConfigsRequest, admin.IncrementalAlterConfigsResponse, 0, 1, _refuse),
        Api(admin.CreateAclsRequest, admin.CreateAclsResponse, 1, 3, _refuse),
        Api(admin.DeleteAclsRequest, admin.DeleteAclsResponse, 1, 3, _refuse),
        Api(admin.ElectLeadersRequest, admin.ElectLeadersResponse, 0, 2, _refuse),
        Api(admin.AlterPartitionReassignmentsRequest, admin.AlterPartitionReassignmentsResponse, 0, 1, _refuse),
        Api(admin.AlterClientQuotasRequest, admin.AlterClientQuotasResponse, 0, 1, _refuse),
        Api(admin.AlterUserScramCredentialsRequest, admin.AlterUserScramCredentialsResponse, 0, 0, _refuse),
        Api(admin.UpdateFeaturesRequest, admin.UpdateFeaturesResponse, 0, 1, _refuse),
    ]


async def _refuse(request: ClientRequest) -> Any:
    # Brokers use this error for what their administrator does not allow, and clients show its message.
    raise RequestRefusedError(ErrorCode.POLICY_VIOLATION, READ_ONLY)


async def _give_id(request: ClientRequest) -> Any:
    if request.message.transactional_id is not None:
        return await _refuse_producer(request)
    # Its records are refused. Without an id, Java's producers of 3.9 and newer ask for one some hundred times a second
    # until they are closed, also those of a Streams application that sends nothing.
    return producer.InitProducerIdResponse(error_code=ErrorCode.NONE, producer_id=next(_PRODUCER_IDS), producer_epoch=0)


async def _refuse_producer(request: ClientRequest) -> Any:
    # These answers have no message. A producer gives up over this error, and does not ask again.
    raise RequestRefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, READ_ONLY)


async def _refuse_records(request: ClientRequest) -> Any:
    if request.message.acks == 0:
        # Nobody waits for an answer, and a broker that can't append closes the connection: so the producer hears of it.
        request.connection.closing = True
        return None
    raise RequestRefusedError(ErrorCode.POLICY_VIOLATION, READ_ONLY)


def refusal(api: Api, request: ClientRequest, error: RequestRefusedError) -> Any:
    """Return the response that has the error wherever it can have one: for the whole, and for each topic, partition or
    other thing that the request names."""
    values = _mirrored(api.request, api.response, request.message, request.version, error)
    return api.response(**values)


def _mirrored(asked: Any, answered: Any, message: Any, version: int, error: RequestRefusedError) -> dict[str, Any]:
    """Return the values of a structure of a response, made of a structure of the request."""
    values: dict[str, Any] = {}
    lists = [field for field in fields_in_version(asked, version) if field.is_array() or field.is_struct_array()]
    for field in fields_in_version(answered, version):
        if field.name.endswith("error_code") and field.name != "topic_config_error_code":
            values[field.name] = error.code
        elif field.name == "error_message":
            values[field.name] = error.message
        elif field.is_struct_array():
            # Responses have their lists in the order in which requests have theirs.
            source = lists.pop(0) if lists else None
            values[field.name] = _list(source, field, message, version, error)
        elif not field.is_array():
            for name in (field.name, *_ALIASES.get(field.name, ())):
                value = getattr(message, name, None)
                if value is not None:
                    values[field.name] = value
                    break
    return values


def _list(source: Any, field: Any, message: Any, version: int, error: RequestRefusedError) -> list[Any]:
    """Return the structures of a list of a response, one for each element of the request's list."""
    if source is None or not any(_can_fail(each, version) for each in fields_in_version(field, version)):
        return []
    made: list[Any] = []
    for element in getattr(message, source.name, None) or []:
        if source.is_struct_array():
            values = _mirrored(source, field, element, version, error)
        else:
            # A list of names or numbers: the structure of each begins with it.
            first = next(iter(fields_in_version(field, version)))
            values = {first.name: element}
            for each in fields_in_version(field, version):
                if each.name.endswith("error_code"):
                    values[each.name] = error.code
                elif each.name == "error_message":
                    values[each.name] = error.message
        made.append(field.data_class(**values))
    return made


def _can_fail(field: Any, version: int) -> bool:
    if field.is_struct_array():
        return any(_can_fail(each, version) for each in fields_in_version(field, version))
    return bool(field.name.endswith("error_code"))
